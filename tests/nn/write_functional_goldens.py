#!/usr/bin/env python3
"""Writes functional_goldens.safetensors: activations, losses and initialisation.

usage: python3 tests/nn/write_functional_goldens.py   (needs torch and safetensors)
PyTorch 2.11, CPU.
"""
import torch
from torch import nn

from golden_arrays import array, ramp, run, save

F = nn.functional

x = ramp(3, 7) * 4
run("leaky_relu", lambda x: F.leaky_relu(x, 0.2), x)
run("gelu", F.gelu, x)
run("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), x)
run("log_sigmoid", F.logsigmoid, x)
run("silu", F.silu, x)
run("elu", lambda x: F.elu(x, 0.5), x)
run("softplus", lambda x: F.softplus(x, 1.5, 3), x)
edges = torch.cat([ramp(12) * 8, torch.tensor([-3.0, 0.0, 3.0, 6.0], dtype=torch.float64)])
run("relu6", F.relu6, edges)
# F.hardsigmoid's own gradient in f64 has 1/6 in f32.
run("hardsigmoid", lambda x: F.relu6(x + 3) / 6, edges)
run("hardswish", F.hardswish, edges)
run("prelu", F.prelu, edges, torch.tensor([0.3], dtype=torch.float64))
run("prelu_channels", F.prelu, ramp(2, 3, 4), ramp(3))
run("softmax", lambda x: F.softmax(x, 1), ramp(2, 5, 3) * 4)
run("log_softmax", lambda x: F.log_softmax(x, 1), ramp(2, 5, 3) * 4)

images = ramp(2, 8, 4, 6)
run("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), images)
run("pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 2), images)
run("instance_norm", nn.InstanceNorm2d(8), images)
# Two batches in training, then one in evaluation.
tracked = nn.InstanceNorm2d(8, momentum=0.3, affine=True, track_running_stats=True).double()
with torch.no_grad():
    tracked.weight.copy_(ramp(8) + 2)
    tracked.bias.copy_(ramp(8))
run("instance_norm_training", tracked, images)
tracked(images * 2 + 1)
array("instance_norm_mean", tracked.running_mean)
array("instance_norm_var", tracked.running_var)
run("instance_norm_evaluation", tracked.eval(), images)
run("zero_pad", nn.ZeroPad2d((1, 2, 0, 3)), images)
run("reflection_pad", nn.ReflectionPad2d((1, 2, 0, 3)), images)

pooled = ramp(2, 3, 6, 5)
run("max_pool_values", lambda x: F.max_pool2d(x, (3, 2), 2, 1, ceil_mode=True), pooled)
array("max_pool_indices", F.max_pool2d(pooled, (3, 2), 2, 1, ceil_mode=True, return_indices=True)[1])

target = torch.tensor([2, -100, 0, 1])
image = torch.tensor([[0, 2, 1], [2, -100, 1]])
for r in ("none", "mean", "sum"):
    run(f"nll_{r}", lambda x: F.nll_loss(x, target, reduction=r), ramp(4, 3))
    run(f"nll_image_{r}", lambda x: F.nll_loss(x, image, reduction=r), ramp(2, 4, 3))
    bce = F.binary_cross_entropy_with_logits
    run(f"bce_{r}", lambda x, t: bce(x, t, reduction=r), ramp(3, 4) * 20, ramp(4, 3).reshape(3, 4).abs())
    run(f"bce_weight_{r}", lambda x, t: bce(x, t, reduction=r, pos_weight=ramp(4) + 2),
        ramp(3, 4) * 20, ramp(4, 3).reshape(3, 4).abs())
    run(f"l1_{r}", lambda x, t: F.l1_loss(x, t, reduction=r), ramp(2, 3), ramp(2, 3) * 0.5)
    run(f"smooth_l1_{r}", lambda x, t: F.smooth_l1_loss(x, t, reduction=r, beta=0.4), ramp(2, 3) * 2, ramp(2, 3))
run("smooth_l1_zero", lambda x, t: F.smooth_l1_loss(x, t, beta=0.0), ramp(2, 3) * 2, ramp(2, 3))

init = nn.init
for seed in (0, 7):
    for name, shape, f in (
        ("uniform", (5, 7), lambda w: init.uniform_(w, -0.3, 1.2)),
        ("normal", (5, 7), lambda w: init.normal_(w, 0.5, 2)),
        ("trunc_normal", (5, 7), lambda w: init.trunc_normal_(w)),
        ("trunc_normal_narrow", (40,), lambda w: init.trunc_normal_(w, 0.1, 0.02, 0.08, 0.3)),
        ("xavier_uniform", (3, 4, 2, 3), lambda w: init.xavier_uniform_(w, 1.5)),
        ("xavier_normal", (3, 4, 2, 3), init.xavier_normal_),
        ("kaiming_uniform", (6, 5), init.kaiming_uniform_),
        ("kaiming_uniform_out", (3, 4, 2, 3),
         lambda w: init.kaiming_uniform_(w, mode="fan_out", nonlinearity="relu")),
        ("kaiming_normal", (6, 5), lambda w: init.kaiming_normal_(w, a=0.2)),
        ("kaiming_normal_tanh", (3, 4, 2, 3),
         lambda w: init.kaiming_normal_(w, mode="fan_out", nonlinearity="tanh")),
        ("orthogonal_tall", (9, 4), init.orthogonal_),
        ("orthogonal_wide", (3, 4, 2, 3), lambda w: init.orthogonal_(w, 1.5)),
        ("orthogonal_square", (5, 5), init.orthogonal_),
    ):
        w = torch.empty(shape)
        torch.manual_seed(seed)
        array(f"init_{name}_{seed}", f(w))
array("init_eye", init.eye_(torch.empty(2, 3)))
array("init_dirac", init.dirac_(torch.empty(4, 3, 3, 2), 2))
array("init_dirac_volume", init.dirac_(torch.empty(2, 1, 2, 3, 4)))
save(__file__)
