"""Writes random_goldens.safetensors: PyTorch's CPU draws through its tensor functions.

usage: python3 tests/tensor/goldens/write_random_goldens.py   (needs torch and safetensors)
"""
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent.parent / "nn"))
from golden_arrays import array, save  # noqa: E402

# One after the other, from the same generator.
torch.manual_seed(7)
array("rand_2_3", torch.rand(2, 3))
array("uniform_5_f64", torch.empty(5, dtype=torch.float64).uniform_(-2, 3))
array("uniform_19", torch.empty(19).uniform_(-0.25, 0.25))
array("randn_20", torch.randn(20))
array("randn_5", torch.randn(5))
array("normal_17_f64", torch.empty(17, dtype=torch.float64).normal_(1, 0.5))
array("rand_4_after", torch.rand(4))
array("randperm_11", torch.randperm(11))
array("rand_2_last", torch.rand(2))

# Probabilities of which some are 0, and draws of their places.
for name, dtype in ("f32", torch.float32), ("f64", torch.float64), ("bf16", torch.bfloat16):
    torch.manual_seed(11)
    p = torch.rand(3, 40, dtype=dtype)
    p[:, ::7] = 0
    array(f"multinomial_{name}_p", p)
    array(f"multinomial_{name}_with", torch.multinomial(p, 50, replacement=True))
    array(f"multinomial_{name}_without", torch.multinomial(p, 30))
    array(f"multinomial_{name}_one", torch.multinomial(p[0], 1, replacement=True))
    array(f"multinomial_{name}_after", torch.rand(2))
save(__file__)
