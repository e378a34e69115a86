#!/usr/bin/env python3
"""Writes composed_nn_goldens.safetensors: operations of neural networks composed of others, in f64.

usage: python3 tests/autograd/write_composed_nn_goldens.py   (needs torch and safetensors)
PyTorch 2.11, CPU.
"""
import math
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "nn"))
from golden_arrays import ramp, run_list, save  # noqa: E402

F = torch.nn.functional

q, k, v = ramp(2, 2, 3, 4) * 2, ramp(2, 2, 5, 4) * 3, ramp(2, 2, 5, 3)
see = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]).bool()
attend = F.scaled_dot_product_attention
run_list("attention", attend, q, k, v)
run_list("attention_scaled", lambda q, k, v: attend(q, k, v, scale=0.3), q, k, v)
run_list("attention_causal", lambda q, k, v: attend(q, k, v, is_causal=True), q, k, v)
run_list("attention_causal_long", lambda q, k, v: attend(q, k, v, is_causal=True), k, q, v[:, :, :3])
run_list("attention_bool", lambda q, k, v: attend(q, k, v, see), q, k, v)
run_list("attention_added", lambda q, k, v, mask: attend(q, k, v, mask), q, k, v, ramp(2, 1, 3, 5))
run_list("attention_added_blind", lambda q, k, v: attend(q, k, v, torch.where(see, 0.5, -math.inf).double()), q, k, v)
run_list("attention_broadcast", lambda q, k, v: attend(q, k, v, see[0]), q[:, :1], k, v[:1])
images, w, b = ramp(2, 6, 2, 3), ramp(6) + 1.5, ramp(6)
run_list("group_norm", lambda x, w, b: F.group_norm(x, 3, w, b), images, w, b)
run_list("group_norm_plain", lambda x: F.group_norm(x, 2, eps=0.1), ramp(3, 4) * 2)
run_list("conv1d", F.conv1d, ramp(2, 4, 7), ramp(3, 4, 2), ramp(3))
run_list("conv1d_options", lambda x, w: F.conv1d(x, w, stride=2, padding=3, dilation=2, groups=2), ramp(2, 4, 7),
         ramp(6, 2, 3))
run_list("conv1d_single", lambda x, w, b: F.conv1d(x, w, b, padding=1), ramp(4, 7), ramp(3, 4, 2), ramp(3))
run_list("conv1d_same", lambda x, w, b: F.conv1d(x, w, b, padding="same", dilation=3), ramp(2, 4, 7), ramp(3, 4, 2),
         ramp(3))
same = lambda x, w, b: F.conv2d(x, w, b, padding="same")
run_list("conv2d_same_odd", same, ramp(2, 2, 4, 5), ramp(3, 2, 3, 5), ramp(3))
run_list("conv2d_same_even", same, ramp(2, 2, 4, 5), ramp(3, 2, 2, 4), ramp(3))
run_list("conv2d_same_wide", same, ramp(2, 2, 1, 2), ramp(3, 2, 3, 6), ramp(3))
run_list("conv2d_same_options", lambda x, w: F.conv2d(x, w, padding="same", dilation=(1, 3), groups=2), ramp(4, 4, 5),
         ramp(4, 2, 4, 2))
columns = {"kernel_size": (2, 3), "dilation": (2, 1), "padding": (1, 0), "stride": (1, 2)}
run_list("unfold", lambda x: F.unfold(x, **columns), ramp(2, 2, 4, 5))
run_list("unfold_single", lambda x: F.unfold(x, 2), ramp(2, 4, 5))
run_list("unfold_apart", lambda x: F.unfold(x, 2, stride=3, padding=1), ramp(1, 3, 4, 5))
run_list("fold", lambda x: F.fold(x, (4, 5), **columns), ramp(2, 12, 8))
run_list("fold_single", lambda x: F.fold(x, (4, 5), 2), ramp(8, 12))
run_list("fold_apart", lambda x: F.fold(x, (4, 5), 2, stride=3, padding=1), ramp(1, 12, 4))
rows = ramp(3, 4)
rows[1] = 0
for name, p in (("one", 1.0), ("two", 2.0), ("three", 3.0), ("infinite", math.inf)):
    run_list(f"normalize_{name}", lambda x: F.normalize(x, p), rows)
run_list("normalize_columns", lambda x: F.normalize(x, dim=0, eps=0.9), ramp(2, 3, 2))

picture = ramp(2, 2, 4, 5)
for name, options in (("size", {"size": (7, 3)}), ("scale", {"scale_factor": 2}), ("odd", {"scale_factor": (1.7, 0.6)})):
    run_list(f"nearest_{name}", lambda x: F.interpolate(x, **options), picture)
    for corners in (False, True):
        run_list(f"bilinear_{name}_{'corners' if corners else 'edges'}",
                 lambda x: F.interpolate(x, mode="bilinear", align_corners=corners, **options), picture)
sequence = ramp(2, 3, 5)
for name, options in (("size", {"size": 7}), ("odd", {"scale_factor": 1.7})):
    run_list(f"nearest_{name}_sequence", lambda x: F.interpolate(x, **options), sequence)
    for corners in (False, True):
        run_list(f"linear_{name}_{'corners' if corners else 'edges'}",
                 lambda x: F.interpolate(x, mode="linear", align_corners=corners, **options), sequence)

save(__file__)
