#!/usr/bin/env python3
"""Writes loss_goldens.safetensors: losses of PyTorch 2.11, CPU, in f64: values and gradients.

usage: python3 tests/nn/write_loss_goldens.py   (needs torch and safetensors)
"""
import warnings

import torch
from torch import nn

from golden_arrays import arrays, ramp, results, save

F = nn.functional


def losses(name, f, *inputs, reductions=("none", "mean", "sum")):
    """One list after the other for each reduction."""
    found = []
    for r in reductions:
        y, grads = results(lambda *x: f(*x, reduction=r), inputs)
        found += [y] + grads
    arrays(name, found)


target = torch.tensor([2, -100, 0, 1, 2])
image = torch.tensor([[0, 2, 1], [2, -100, 1]])
weight = torch.tensor([0.5, 2.0, 0.75], dtype=torch.float64)
image_weight = ramp(4) + 1.5
rows, pixels = ramp(5, 3) * 3, ramp(2, 4, 3) * 3
for smoothing in (0.0, 0.3):
    name = "smooth" if smoothing else "plain"
    losses(f"cross_entropy_rows_{name}",
           lambda x, **r: F.cross_entropy(x, target, weight, label_smoothing=smoothing, **r), rows)
    losses(f"cross_entropy_pixels_{name}",
           lambda x, **r: F.cross_entropy(x, image, image_weight, label_smoothing=smoothing, **r), pixels)
losses("nll_rows", lambda x, **r: F.nll_loss(x, target, weight, **r), rows)
losses("nll_pixels", lambda x, **r: F.nll_loss(x, image, image_weight, **r), pixels)

p = (ramp(3, 4) + 1) / 2  # the first is 0
p[2, 3] = 1
t = (ramp(4, 3).reshape(3, 4) * 0.5 + 0.5).roll(5)
losses("bce", F.binary_cross_entropy, p, t)
each = ramp(4) + 1.5
losses("bce_weighted", lambda x, t, **r: F.binary_cross_entropy(x, t, each, **r), p, t)
x = ramp(3, 4) * 4
losses("bce_with_logits_weighted",
       lambda x, t, **r: F.binary_cross_entropy_with_logits(x, t, each, pos_weight=each * 2, **r), x, t)
losses("huber", lambda x, t, **r: F.huber_loss(x, t, delta=0.7, **r), x, t)
log_p, q = F.log_softmax(ramp(3, 4), 1), F.softmax(ramp(3, 4) * 2, 1)
warnings.simplefilter("ignore")  # about the mean, which may become batchmean
every = ("none", "mean", "sum", "batchmean")
losses("kl_div", F.kl_div, log_p, q, reductions=every)
losses("kl_div_log", lambda x, t, **r: F.kl_div(x, t, log_target=True, **r), log_p, q.log(), reductions=every)

# Probabilities as targets, samples without a batch, and operands of different shapes.
shares, of_pixels = F.softmax(ramp(5, 3), 1), F.softmax(ramp(2, 4, 3), 1)
for smoothing in (0.0, 0.3):
    name = "smooth" if smoothing else "plain"
    losses(f"cross_entropy_shares_{name}",
           lambda x, q, **r: F.cross_entropy(x, q, weight, label_smoothing=smoothing, **r), rows, shares)
    losses(f"cross_entropy_pixel_shares_{name}",
           lambda x, q, **r: F.cross_entropy(x, q, label_smoothing=smoothing, **r), pixels, of_pixels)
losses("cross_entropy_single", lambda x, **r: F.cross_entropy(x, torch.tensor(2), weight, **r), ramp(3))
losses("cross_entropy_single_shares", lambda x, q, **r: F.cross_entropy(x, q, **r), ramp(3), shares[0])
losses("nll_single", lambda x, **r: F.nll_loss(x, torch.tensor(2), weight, **r), ramp(3))
for name, f in (("mse", F.mse_loss), ("l1", F.l1_loss), ("smooth_l1", F.smooth_l1_loss), ("huber", F.huber_loss)):
    losses(f"{name}_broadcast", f, ramp(2, 3) * 2, ramp(4, 1, 3))
save(__file__)
