#!/usr/bin/env python3
"""Writes embedding_bag_goldens.safetensors: nn.EmbeddingBag of PyTorch 2.11, CPU, in f64.

usage: python3 tests/nn/write_embedding_bag_goldens.py   (needs torch and safetensors)
Each list has the output, the gradient of the table [6,2] and, if there are any, that of the weights. The bags of the
offsets have 2, 0, 4, 1 and 0 indices; the fourth has the padding alone.
"""
import torch
from torch import nn

from golden_arrays import arrays, ramp, save

flat = torch.tensor([4, 0, 3, 5, 3, 1, 5])
offsets = torch.tensor([0, 2, 2, 6, 7])
table = torch.tensor([[4, 0, 3], [5, 3, 5], [5, 5, 5], [1, 1, 2]])


def run(name, index, offsets=None, weights=None, **options):
    bag = nn.EmbeddingBag(6, 2, **options).double()
    bag.weight.data = ramp(6, 2)
    if weights is not None:
        weights = weights.requires_grad_()
    y = bag(index, offsets, weights)
    y.backward(ramp(*y.shape))
    arrays(name, [y, bag.weight.grad] + ([] if weights is None else [weights.grad]))


for mode in ("sum", "mean", "max"):
    run(f"{mode}_offsets", flat, offsets, mode=mode)
    run(f"{mode}_table", table, mode=mode)
    run(f"{mode}_offsets_padded", flat, offsets, mode=mode, padding_idx=5)
    run(f"{mode}_table_padded", table, mode=mode, padding_idx=-1)
run("last_offset", flat, torch.tensor([0, 2, 7]), mode="sum", include_last_offset=True)
run("weighted_offsets", flat, offsets, ramp(7), mode="sum", padding_idx=5)
run("weighted_table", table, None, ramp(4, 3), mode="sum")
save(__file__)
