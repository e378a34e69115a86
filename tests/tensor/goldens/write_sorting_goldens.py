"""Writes sorting_goldens.safetensors: of every dtype an array x, and how PyTorch sorts it, finds its
medians and its different elements, counts them and searches for them.

usage: python3 tests/tensor/goldens/write_sorting_goldens.py   (needs torch and safetensors)
"""
import math
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent.parent / "nn"))
from golden_arrays import array, save  # noqa: E402

NUMBERS = [math.nan, -math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5, -1.5, 2.0, -2.0, 1e-40, -1e-40, 3e38, 1.0]
SHAPE = (2, 13, 3)


def chosen(values, dtype):
    """Each value several times, at random places."""
    torch.manual_seed(5)
    return torch.tensor(values, dtype=dtype)[torch.randint(len(values), SHAPE)]


INPUTS = {
    "f32": chosen(NUMBERS, torch.float32),
    "f64": chosen(NUMBERS, torch.float64),
    "bf16": chosen(NUMBERS, torch.bfloat16),
    "i64": chosen([-2**63, 2**63 - 1, 2**63 - 2, 2**32, -2**32, -1, 0, 1], torch.int64),
    "i32": chosen([-2**31, 2**31 - 1, 65536, 256, -1, 0, 1], torch.int32),
    "u8": chosen([0, 1, 127, 128, 255], torch.uint8),
    "bool": chosen([True, False], torch.bool),
}
for dtype, x in INPUTS.items():
    array(f"{dtype}_x", x)
    for dim in range(x.dim()):
        for descending in (False, True):
            # Of equal elements PyTorch gives any order unless it is told.
            values, indices = torch.sort(x, stable=True, dim=dim, descending=descending)
            name = f"{dtype}_{dim}_{'down' if descending else 'up'}"
            array(f"{name}_values", values)
            array(f"{name}_indices", indices)
        if dtype != "bool":  # not in PyTorch
            values, indices = torch.median(x, dim)
            array(f"{dtype}_{dim}_median", values)
            array(f"{dtype}_{dim}_median_indices", indices)
    for name, result in zip(("values", "inverse", "counts"), torch.unique(x, return_inverse=True, return_counts=True)):
        array(f"{dtype}_unique_{name}", result)
    # Slices of which several are equal, without NaN, for which PyTorch has no order here.
    few = x[~torch.isnan(x)][:12].reshape(2, 2, 3)
    slices = few[:, :, [2, 0, 1, 0, 2, 2, 1]]
    array(f"{dtype}_slices", slices)
    for dim in range(3):
        names = ("values", "inverse", "counts")
        for name, result in zip(names, torch.unique(slices, return_inverse=True, return_counts=True, dim=dim)):
            array(f"{dtype}_unique_{dim}_{name}", result)
    array(f"{dtype}_nonzero", torch.nonzero(x))
    if dtype != "bool":
        # A sequence without NaN, in which some of x are and others are not.
        sequence = torch.unique(x[~torch.isnan(x)])[::2]
        array(f"{dtype}_sequence", sequence)
        for side in ("left", "right"):
            array(f"{dtype}_search_{side}", torch.searchsorted(sequence, x, side=side))
save(__file__)
