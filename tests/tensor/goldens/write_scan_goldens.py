"""Writes scan_goldens.safetensors: of every dtype an array x, its running sums and products.

usage: python3 tests/tensor/goldens/write_scan_goldens.py   (needs torch and safetensors)
"""
import math
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent.parent / "nn"))
from golden_arrays import array, save  # noqa: E402

SHAPE = (2, 13, 3)


def chosen(values, dtype):
    """Each value several times, at random places."""
    torch.manual_seed(5)
    return torch.tensor(values, dtype=dtype)[torch.randint(len(values), SHAPE)]


NUMBERS = [0.7, -1.3, 2.6, 1e-3, 0.0, -0.0, 1.1, -0.9, 3.3, 1000.1]
INPUTS = {
    "f32": chosen(NUMBERS, torch.float32),
    "f64": chosen(NUMBERS, torch.float64),
    "bf16": chosen(NUMBERS, torch.bfloat16),
    "i64": chosen([-2**63, 2**62, 2**53 - 1, -3, -1, 2, 1], torch.int64),
    "i32": chosen([-2**31, 2**31 - 1, 65537, -1, 3, 1], torch.int32),
    "u8": chosen([1, 2, 127, 255], torch.uint8),
    "bool": chosen([True, True, True, False], torch.bool),
}
for dtype, x in INPUTS.items():
    array(f"{dtype}_x", x)
    for dim in range(x.dim()):
        array(f"{dtype}_cumsum_{dim}", torch.cumsum(x, dim))
        array(f"{dtype}_cumprod_{dim}", torch.cumprod(x, dim))

# The gradients of products with no zero, one and several, and with what is not finite.
rows = torch.tensor([[2.0, -3, 0.5, 4], [2, 0, 0.5, 4], [0, 0, 0.5, 4], [2, -0.0, 3, 0], [2, math.inf, 0, 3],
                     [2, math.nan, 0, 3]], dtype=torch.float64)
weights = torch.arange(1.0, 25, dtype=torch.float64).reshape(6, 4)
array("rows", rows)
for dim in (0, 1):
    x = rows.clone().requires_grad_()
    torch.cumprod(x, dim).backward(weights)
    array(f"rows_grad_{dim}", x.grad)
save(__file__)
