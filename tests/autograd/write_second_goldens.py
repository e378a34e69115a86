#!/usr/bin/env python3
"""Writes second_goldens.safetensors: functions with a gradient in them, and their own gradients, in f64.

usage: python3 tests/autograd/write_second_goldens.py   (needs torch and safetensors)
PyTorch 2.11, CPU.
"""
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "nn"))
from golden_arrays import ramp, run_list, save  # noqa: E402

F = torch.nn.functional


def gradient(y, x):
    return torch.autograd.grad(y, x, create_graph=True)[0]


def hessian_times(loss):
    """(weight, v) -> the product of the loss's Hessian by the weight with v"""
    return lambda w, v: gradient((gradient(loss(w), w) * v).sum(), w)


# PyTorch's own norms take the statistics as constants in their third derivatives, which finite differences show to be
# wrong (2.11): so these are by single operations.
def normalized(x, dims):
    deviation = x - x.mean(dims, keepdim=True)
    return deviation / (deviation.square().mean(dims, keepdim=True) + 1e-5).sqrt()


x, target = ramp(3, 4), torch.tensor([2, 0, 4])
run_list("hessian_mlp", hessian_times(lambda w: F.gelu(x @ w).tanh().square().sum()), ramp(4, 5), ramp(4, 5) * 2)
run_list("hessian_cross_entropy", hessian_times(lambda w: F.cross_entropy(x @ w, target, label_smoothing=0.1)),
         ramp(4, 5), ramp(4, 5) * 2)
run_list("hessian_layer_norm", hessian_times(lambda w: normalized(x @ w, -1).exp().mean()), ramp(4, 5),
         ramp(4, 5) * 2)
images = ramp(2, 2, 5, 5)
run_list("hessian_batch_norm", hessian_times(
    lambda w: normalized(F.conv2d(images, w, stride=2), (0, 2, 3)).sigmoid().sum()),
         ramp(3, 2, 3, 3), ramp(3, 2, 3, 3) * 2)


def penalty(w1, w2):
    x = images.clone().requires_grad_()
    slope = gradient(F.conv2d(F.leaky_relu(F.conv2d(x, w1, stride=2, padding=1), 0.2), w2).sum(), x)
    return (slope.flatten(1).norm(dim=1) - 1).square().mean()


run_list("penalty", penalty, ramp(4, 2, 3, 3), ramp(1, 4, 3, 3))
save(__file__)
