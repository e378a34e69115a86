#!/usr/bin/env python3
"""Writes composed_goldens.safetensors: operations composed of others, and 1-D matmul.

usage: python3 tests/autograd/write_composed_goldens.py   (needs torch and safetensors)
PyTorch 2.11, CPU.
"""
import math
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "nn"))
from golden_arrays import array, ramp, run, save  # noqa: E402

F = torch.nn.functional
INF, NAN = math.inf, math.nan

x = ramp(2, 3, 4) * 4
for name, dims in (("all", (0, 1, 2)), ("one", (1,)), ("two", (0, 2))):
    for keep in (False, True):
        suffix = f"{name}_{'keep' if keep else 'drop'}"
        run(f"std_{suffix}", lambda x: x.std(dims, keepdim=keep), x)
        run(f"logsumexp_{suffix}", lambda x: x.logsumexp(dims, keepdim=keep), x)
run("std_population", lambda x: x.std((1,), correction=0), x)
run("std_constant", lambda x: x.std(), torch.ones(3, dtype=torch.float64))
run("logsumexp_large", lambda x: x.logsumexp((1,)), torch.tensor([[1000.0, 999], [-1000, -1001], [-INF, 2]], dtype=torch.float64))
array("logsumexp_infinite", torch.tensor([[-INF, -INF], [INF, 1], [NAN, 1]], dtype=torch.float64).logsumexp(1))

ties = torch.tensor([[3.0, 1, 3, -2], [NAN, 5, NAN, 7], [-1, -1, -4, -4]], dtype=torch.float64)
for name in ("max", "min"):
    for dim in (0, 1):
        run(f"{name}_of_dim_{dim}", lambda x: getattr(x, name)(dim).values, ties)
        array(f"{name}_of_dim_{dim}_at", getattr(ties, name)(dim).indices.double())
    array(f"arg{name}", getattr(torch, f"arg{name}")(x).double())
    array(f"arg{name}_nan", getattr(torch, f"arg{name}")(ties).double())

run("dot", torch.dot, ramp(5), ramp(5) + 0.5)
for name, a, b in (("vectors", (4,), (4,)), ("row", (3,), (3, 2)), ("column", (2, 3), (3,)),
                   ("rows", (3,), (2, 3, 2)), ("columns", (2, 2, 3), (3,))):
    run(f"matmul_{name}", torch.matmul, ramp(*a), ramp(*b) + 0.5)

m = ramp(3, 4) * 4
mask = m > 0.3
run("masked_fill", lambda x: x.masked_fill(mask, -7.5), m)
run("masked_fill_row", lambda x: x.masked_fill(mask[1], INF), m)
run("masked_select", lambda x: x.masked_select(mask), m)
run("masked_select_wide", lambda x: x.masked_select(mask), ramp(4))
run("mask_of_rows", lambda x: x[mask[:, 0]], m)
run("mask_of_front", lambda x: x[mask], ramp(3, 4, 2))
run("repeat", lambda x: x.repeat(2, 1, 3), ramp(2, 3))
run("flip", lambda x: x.flip(0, 2), ramp(2, 3, 4))
run("roll", lambda x: x.roll(2, 1), ramp(2, 5))
run("roll_back", lambda x: x.roll(-7, -2), ramp(3, 4))
run("roll_all", lambda x: x.roll(5), ramp(3, 4))
for k in (-2, 0, 1, 9):
    name = str(k).replace("-", "m")
    run(f"tril_{name}", lambda x: x.tril(k), ramp(2, 3, 4))
    run(f"triu_{name}", lambda x: x.triu(k), ramp(2, 3, 4))
run("pad", lambda x: F.pad(x, (1, 2, 0, 3), value=-1.5), ramp(2, 3, 2))
for mode, pads in (("reflect", (1, 2, 0, 2)), ("replicate", (3, 1, 2, 0)), ("circular", (2, 0, 1, 3))):
    run(f"pad_{mode}", lambda x, m=mode, p=pads: F.pad(x, p, mode=m), ramp(2, 3, 3, 3))
run("pad_crop", lambda x: F.pad(x, (-1, 2, 1, -2)), ramp(3, 4))

run("fmod", torch.fmod, ramp(2, 3) * 9, ramp(3) + 0.3)
array("fmod_special", torch.fmod(torch.tensor([5.0, -5, 5, INF, 3, NAN, 0], dtype=torch.float64),
                                 torch.tensor([3.0, 3, -3, 2, INF, 1, 0], dtype=torch.float64)))
run("addcmul", lambda x, a, b: torch.addcmul(x, a, b, value=-2), ramp(2, 3), ramp(3) + 0.5, ramp(2, 1))
run("addcdiv", lambda x, a, b: torch.addcdiv(x, a, b, value=0.5), ramp(2, 3), ramp(3), ramp(2, 1) + 1.5)
run("amax", lambda x: x.amax(0), ties)
run("amin", lambda x: x.amin(), ties[[0, 2]])
zeros_within = torch.tensor([[1.0, 0, -2], [0, 0, 0], [3, -4, 0.5]], dtype=torch.float64)
for name, p in (("half", 0.5), ("one", 1), ("three", 3), ("most", INF), ("least", -INF)):
    run(f"p_norm_{name}", lambda x: torch.linalg.vector_norm(x, p, 1), zeros_within)
    run(f"p_norm_{name}_all", lambda x: torch.linalg.vector_norm(x, p), ramp(2, 3) * 4)
array("p_norm_count", torch.linalg.vector_norm(zeros_within, 0, 1))
run("normalize_half", lambda x: F.normalize(x, 0.5), ramp(2, 3) * 4)
run("std_of", lambda x: torch.std_mean(x, 1)[0], m)
run("mean_of", lambda x: torch.std_mean(x, 1)[1], m)
run("var_of", lambda x: torch.var_mean(x, 0, correction=0, keepdim=True)[0], m)
run("outer", torch.outer, ramp(3), ramp(2) + 0.5)
run("unbind", lambda x: x.unbind(1)[2], m)
axes = (ramp(2), ramp(3), ramp(2))
for indexing in ("ij", "xy"):
    for i, axis in enumerate(axes):
        run(f"meshgrid_{indexing}_{i}", lambda x: torch.meshgrid(*axes[:i], x, *axes[i + 1:], indexing=indexing)[i], axis)
for k in (-2, 0, 1):
    name = str(k).replace("-", "m")
    run(f"diag_{name}", lambda x: x.diag(k), m)
    run(f"diag_of_{name}", lambda x: x.diag(k), ramp(3))
    run(f"diagonal_{name}", lambda x: x.diagonal(k, 2, 0), ramp(3, 2, 4))
run("repeat_interleave", lambda x: x.repeat_interleave(2), ramp(2, 3))
run("repeat_interleave_dim", lambda x: x.repeat_interleave(3, 0), ramp(2, 3))
run("repeat_interleave_each", lambda x: x.repeat_interleave(torch.tensor([2, 0, 3]), 1), ramp(2, 3))
run("unfold", lambda x: x.unfold(1, 3, 2), ramp(2, 8))
run("einsum_attention", lambda q, k: torch.einsum("bqhd,bkhd->bhqk", q, k), ramp(2, 3, 2, 4), ramp(2, 5, 2, 4) + 0.3)
run("einsum_bilinear", lambda x, w, y: torch.einsum("bi,oij,bj->bo", x, w, y), ramp(2, 3), ramp(4, 3, 2), ramp(2, 2))
run("einsum_trace", lambda x: torch.einsum("...ii->...", x), ramp(2, 3, 3))
run("einsum_implicit", lambda x, y: torch.einsum("ba,ac", x, y), ramp(2, 3), ramp(3, 4))
array("prod_dtype", torch.tensor([3, 5, 7], dtype=torch.int32).prod(dtype=torch.float64))
array("arange_quarters", torch.arange(0, 1, 0.25))

special = torch.tensor([0.0, -1.5, INF, -INF, NAN, 3e38], dtype=torch.float64)
for name in ("isnan", "isinf", "isfinite"):
    array(name, getattr(torch, name)(special).double())
a = torch.tensor([1.0, 1, 1, INF, INF, NAN, 0, 1e9], dtype=torch.float64)
b = torch.tensor([1.0, 1 + 9e-6, 1 + 2e-5, INF, -INF, NAN, 1e-9, 1e9 + 9e3], dtype=torch.float64)
array("isclose", torch.isclose(a, b).double())
array("isclose_nan", torch.isclose(a, b, rtol=0, atol=1e-5, equal_nan=True).double())

for name, args in (("odd", (-1, 2, 7)), ("even", (3, -3, 4)), ("one", (5, 9, 1))):
    array(f"linspace_{name}", torch.linspace(*args, dtype=torch.float64))
    array(f"linspace_{name}_f32", torch.linspace(*args))
array("linspace_whole", torch.linspace(0, 10, 5, dtype=torch.int64).double())
torch.manual_seed(3)
for low, high in ((0, 10), (-5, 2**28 - 6), (-5, 2**28 - 5), (-2**40, 2**50)):
    array(f"randint_{(high - low).bit_length()}", torch.randint(low, high, (5,)).double())
array("randn_like", torch.randn_like(torch.empty(2, 3)))
array("rand_like", torch.rand_like(torch.empty(2, 3)))
torch.manual_seed(4)
array("normal", torch.normal(1.5, 2, (20,)))
array("normal_both", torch.normal(ramp(20).float(), ramp(20).float() + 2))
array("normal_mean", torch.normal(ramp(20).float(), 2))
array("normal_std", torch.normal(1.5, ramp(20).float() + 2))
save(__file__)
