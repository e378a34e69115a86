#!/usr/bin/env python3
"""Writes goldens.safetensors: five steps of PyTorch 2.11's optimisers in f64.

usage: python3 tests/optim/write_goldens.py   (needs torch and safetensors)
Two parameters start at {1, -2, 3} and {0.5, -0.25}; the gradient of step t (from 0) is
p * (t + 1) / 4 + 0.1, so that it depends on the values reached; for amsgrad p * (5 - t) / 4 + 0.1,
under which the mean of squares falls.
"""
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "nn"))
from golden_arrays import array, save  # noqa: E402


def uphill(t):
    return (t + 1) / 4


def downhill(t):
    return (5 - t) / 4


def run(name, make, slope=uphill):
    a = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([0.5, -0.25], dtype=torch.float64, requires_grad=True)
    optimizer = make([a, b])
    for t in range(5):
        for p in (a, b):
            p.grad = (p.detach() * slope(t) + 0.1).clone()
        optimizer.step()
    array(name, torch.cat([a, b]))


o = torch.optim
run("sgd", lambda p: o.SGD(p, lr=0.1))
run("sgd_momentum", lambda p: o.SGD(p, lr=0.1, momentum=0.9, dampening=0.5, weight_decay=0.01))
run("sgd_nesterov", lambda p: o.SGD(p, lr=0.1, momentum=0.9, nesterov=True))
run("adam", lambda p: o.Adam(p))
run("adam_decay", lambda p: o.Adam(p, lr=0.05, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1))
run("adamw", lambda p: o.AdamW(p, lr=0.05))
run("rmsprop", lambda p: o.RMSprop(p))
run("rmsprop_momentum", lambda p: o.RMSprop(p, lr=0.02, alpha=0.9, eps=1e-6, weight_decay=0.1, momentum=0.8))
run("rmsprop_centered", lambda p: o.RMSprop(p, lr=0.02, alpha=0.9, centered=True))
run("rmsprop_all", lambda p: o.RMSprop(p, lr=0.02, alpha=0.9, weight_decay=0.1, momentum=0.8, centered=True))
run("sgd_maximize", lambda p: o.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, maximize=True))
run("adam_amsgrad", lambda p: o.Adam(p, lr=0.05, betas=(0.9, 0.5), amsgrad=True), downhill)
run("adam_amsgrad_maximize",
    lambda p: o.Adam(p, lr=0.05, betas=(0.9, 0.5), weight_decay=0.1, amsgrad=True, maximize=True), downhill)
run("adamw_amsgrad", lambda p: o.AdamW(p, lr=0.05, betas=(0.9, 0.5), amsgrad=True), downhill)
run("adamw_maximize", lambda p: o.AdamW(p, lr=0.05, maximize=True))
run("rmsprop_maximize", lambda p: o.RMSprop(p, lr=0.02, weight_decay=0.1, momentum=0.8, centered=True, maximize=True))

run("adadelta", lambda p: o.Adadelta(p))
run("adadelta_maximize", lambda p: o.Adadelta(p, lr=0.5, rho=0.8, eps=1e-3, weight_decay=0.1, maximize=True))


def schedule(name, make, optimizer=lambda groups: o.SGD(groups, momentum=0.9), metric=None):
    """The rates of two groups, and their momenta, before and after each of 50 steps, which get metric(t) if it is given."""
    groups = [{"params": [torch.zeros(1, requires_grad=True)], "lr": lr} for lr in (0.1, 0.03)]
    optimizer = optimizer(groups)
    schedulers = make(optimizer)
    values = []
    for t in range(51):
        for g in optimizer.param_groups:
            values += [g["lr"], g["betas"][0] if "betas" in g else g["momentum"]]
        if t == 50:
            break
        optimizer.step()
        for s in schedulers:
            s.step(*([metric(t)] if metric else []))
    array(name, torch.tensor(values, dtype=torch.float64))


s = o.lr_scheduler
schedule("step_lr", lambda p: [s.StepLR(p, 7, gamma=0.5)])
schedule("multi_step_lr", lambda p: [s.MultiStepLR(p, [3, 20, 20, 41], gamma=0.3)])
schedule("cosine_lr", lambda p: [s.CosineAnnealingLR(p, 50)])
schedule("cosine_restarts_lr", lambda p: [s.CosineAnnealingLR(p, 8, eta_min=0.001)])
schedule("linear_lr", lambda p: [s.LinearLR(p)])
schedule("linear_down_lr", lambda p: [s.LinearLR(p, 1.0, 0.1, 30)])
schedule("one_cycle_lr", lambda p: [s.OneCycleLR(p, 0.5, total_steps=50)])
schedule("one_cycle_adam_lr",
         lambda p: [s.OneCycleLR(p, [0.5, 0.2], total_steps=60, pct_start=0.4, base_momentum=0.8, max_momentum=0.9,
                                 div_factor=10.0, final_div_factor=100.0)],
         lambda groups: o.Adam(groups))
schedule("chained_lr", lambda p: [s.LinearLR(p, 0.1, total_iters=4), s.StepLR(p, 9), s.CosineAnnealingLR(p, 20)])
schedule("exponential_lr", lambda p: [s.ExponentialLR(p, 0.9)])
schedule("lambda_lr", lambda p: [s.LambdaLR(p, lambda t: 1 / (1 + t))])
schedule("lambdas_lr", lambda p: [s.LambdaLR(p, [lambda t: 0.95 ** t, lambda t: t // 10])])
schedule("warm_restarts_lr", lambda p: [s.CosineAnnealingWarmRestarts(p, 7, eta_min=0.001)])
schedule("longer_warm_restarts_lr", lambda p: [s.CosineAnnealingWarmRestarts(p, 3, 2)])
schedule("sequential_lr",
         lambda p: [s.SequentialLR(p, [s.LinearLR(p, 0.1, total_iters=4), s.CosineAnnealingLR(p, 12, eta_min=0.001),
                                       s.MultiStepLR(p, [3, 8], gamma=0.5), s.CosineAnnealingWarmRestarts(p, 5)],
                                   [5, 20, 35])])
schedule("sequential_cycle_lr",
         lambda p: [s.SequentialLR(p, [s.ExponentialLR(p, 0.9), s.OneCycleLR(p, 0.5, total_steps=60)], [10])])


def metric(t):
    """Falls, then goes to and fro."""
    return max(0, 10 - t) / 8 + t * 29 % 37 / 37


def plateau(name, **options):
    schedule(name, lambda p: [s.ReduceLROnPlateau(p, **options)], metric=metric)


plateau("plateau_lr", patience=2)
plateau("plateau_max_lr", mode="max", factor=0.5, patience=3, threshold=0.1, threshold_mode="abs", cooldown=4)
plateau("plateau_abs_lr", factor=0.6, patience=0, threshold=0.05, threshold_mode="abs", cooldown=2, min_lr=[0.01, 1e-3])
plateau("plateau_rel_lr", mode="max", factor=0.3, patience=1, threshold=0.2, min_lr=1e-4, eps=1e-3)
save(__file__)
