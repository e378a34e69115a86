#!/usr/bin/env python3
"""Writes goldens.h: five steps of PyTorch 2.11's optimisers in f64.

usage: python3 write_goldens.py > goldens.h   (needs torch)
Two parameters start at {1, -2, 3} and {0.5, -0.25}; the gradient of step t (from 0) is
p * (t + 1) / 4 + 0.1, so that it depends on the values reached.
"""
import torch

print("// Written by write_goldens.py with PyTorch", torch.__version__.split("+")[0] + ". Do not edit.")
print("#pragma once\n\n#include <vector>\n\nnamespace weft::goldens {\n")


def run(name, make):
    a = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([0.5, -0.25], dtype=torch.float64, requires_grad=True)
    optimizer = make([a, b])
    for t in range(5):
        for p in (a, b):
            p.grad = (p.detach() * (t + 1) / 4 + 0.1).clone()
        optimizer.step()
    values = [float(v).hex() for p in (a, b) for v in p.detach()]
    print(f"inline const std::vector<double> {name} = {{{', '.join(values)}}};")


o = torch.optim
run("sgd", lambda p: o.SGD(p, lr=0.1))
run("sgd_momentum", lambda p: o.SGD(p, lr=0.1, momentum=0.9, dampening=0.5, weight_decay=0.01))
run("sgd_nesterov", lambda p: o.SGD(p, lr=0.1, momentum=0.9, nesterov=True))
run("adam", lambda p: o.Adam(p))
run("adam_decay", lambda p: o.Adam(p, lr=0.05, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1))
run("adamw", lambda p: o.AdamW(p, lr=0.05))
print("\n}  // namespace weft::goldens")
