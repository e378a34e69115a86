"""Operations that weft has by now, whose calls tests/peers does not make yet: op_db_mapping.LATER."""
import torch

from op_db_elementwise import binary
from op_db_mapping import maps, number


# --- Expected later (LATER): the calls are there in Python, and not yet in C++ ---------------------
maps("clamp_min", elementwise=True)(binary("clamp_min"))
maps("clamp_max", elementwise=True)(binary("clamp_max"))
maps("fmod", elementwise=True)(binary("fmod"))
maps("einsum")(lambda c, operands, equation: c("einsum", *operands, equation=equation))
maps("unbind")(lambda c, x, dim=0: c("unbind", x, dim=dim, results=x.shape[dim]))
maps("diag")(lambda c, x, diagonal=0: c("diag", x, diagonal=diagonal))
maps("addcmul")(lambda c, x, a, b, value=1: c("addcmul", x, a, b, value=number(value)))
maps("nn.functional.prelu")(lambda c, x, weight: c("prelu", x, weight))


@maps("meshgrid/list_of_tensors", "meshgrid/variadic_tensors")
def meshgrid(c, first, *others, indexing="ij"):
    grids = list(first) if isinstance(first, (list, tuple)) else [first, *others]
    return c("meshgrid", *grids, indexing=indexing, results=len(grids))


@maps("repeat_interleave")
def repeat_interleave(c, x, repeats, dim=None):
    if isinstance(repeats, torch.Tensor):
        return c("repeat_interleave", x, repeats, dim=dim)
    return c("repeat_interleave", x, repeats=repeats, dim=dim)


@maps("nn.functional.embedding_bag")
def embedding_bag(c, weight, index, offsets=None, mode="mean", padding_idx=None):
    return c("embedding_bag", index, weight, offsets, mode=mode, padding_idx=padding_idx)
