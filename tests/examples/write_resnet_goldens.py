#!/usr/bin/env python3
"""Writes resnet_goldens.json: what PyTorch 2.11 computes in f64 with ResNet-18 and ResNet-50 on the CPU.

usage: python3 write_resnet_goldens.py > resnet_goldens.json
  Needs torch and what examples/pytorch/common.py imports.

Weights and images are made by a formula that resnet_test.cc has too (`made_up`), so that no large
file is needed. The model is the twin's, examples/pytorch/resnet.py; its names and shapes are those of
torchvision.models.resnet18 and resnet50.
"""
import json
import math
import pathlib
import sys

import numpy as np
import torch
from torch.nn import functional as F

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples/pytorch"))
import resnet

CLASSES, STEPS, SAMPLES = 10, 5, 3


def made_up(number, shape):
    """Values from -1 to 1, of tensor `number`: a hash of 32 bits of every index."""
    h = np.arange(math.prod(shape), dtype=np.uint32) * np.uint32(2654435761) + np.uint32(number * 40503 & 0xffffffff)
    for shift, factor in ((15, 2246822519), (13, 3266489917)):
        h = (h ^ (h >> np.uint32(shift))) * np.uint32(factor)
    h ^= h >> np.uint32(16)
    return torch.from_numpy(h.astype(np.float64) / 2**31 - 1).reshape(shape)


def set_weights(model):
    for number, (name, p) in enumerate(model.named_parameters()):
        u = made_up(number, p.shape)
        with torch.no_grad():
            if p.dim() == 4:  # of the variance that kaiming_normal gives
                p.copy_(u * math.sqrt(6 / (p.shape[0] * p.shape[2] * p.shape[3])))
            elif p.dim() == 2:
                p.copy_(u * math.sqrt(3 / p.shape[1]))
            else:
                p.copy_(u * 0.2 + (1 if name.endswith("weight") else 0))
            if name.endswith("bn3.weight"):  # otherwise steps multiply rounding by thousands
                p.mul_(0.25)


def figures(x, samples=0):
    """Norm, sum and a few elements, spread evenly."""
    x = x.detach().double().flatten()
    return [x.norm().item(), x.sum().item()] + [x[i * (len(x) - 1) // (samples - 1)].item() for i in range(samples)]


def goldens(depth):
    model = resnet.resnet(depth, num_classes=CLASSES).double()
    set_weights(model)
    x, label = made_up(1000, (2, 3, 64, 64)), torch.tensor([3, 7])
    sgd = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)
    out = {"shapes": {name: list(value.shape) for name, value in resnet.resnet(depth).state_dict().items()}, "losses": []}
    for step in range(STEPS):
        sgd.zero_grad()
        logits = model(x)
        loss = F.cross_entropy(logits, label)
        loss.backward()
        if step == 0:
            out["logits"] = logits.flatten().tolist()
            out["gradients"] = {name: figures(p.grad, SAMPLES) for name, p in model.named_parameters()}
        sgd.step()
        out["losses"].append(loss.item())
    out["state"] = {name: figures(value) for name, value in model.state_dict().items()}
    model.eval()
    out["evaluated"] = model(x).flatten().tolist()
    return out


def lines(value):
    """JSON with one line for each table of a model."""
    return ",\n   ".join(f"{json.dumps(key)}: {json.dumps(table)}" for key, table in value.items())


models = ",\n ".join(f'"resnet{depth}": {{{lines(goldens(depth))}}}' for depth in (18, 50))
print(f'{{"torch": "{torch.__version__.split("+")[0]}",\n {models}}}')
