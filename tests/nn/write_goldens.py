#!/usr/bin/env python3
"""Writes goldens.safetensors: initial weights and layer results of PyTorch 2.11, CPU.

usage: python3 tests/nn/write_goldens.py   (needs torch and safetensors)
Weights come out bit for bit the same on CPUs with FMA; see Generator in core/runtime/rng.h.
"""
import torch
from torch import nn

from golden_arrays import array, ramp, run, save


def checksum(module):
    """Sum of all parameters in f64, in order."""
    return sum(float(p.detach().double().sum()) for p in module.parameters())


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.conv2 = nn.Conv2d(8, 64, 3)
        self.fc = nn.Linear(36864, 32)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(32, 36864)
        self.conv2 = nn.ConvTranspose2d(64, 8, 3)
        self.conv1 = nn.ConvTranspose2d(8, 1, 3)


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.decoder = Decoder()


for seed in (0, 7):
    torch.manual_seed(seed)
    for name, layer in (
        ("linear", nn.Linear(5, 3)),
        ("conv", nn.Conv2d(4, 2, (3, 2), groups=2)),
        ("conv_transpose", nn.ConvTranspose2d(4, 6, 3, groups=2)),
    ):
        array(f"{name}_weight_{seed}", layer.weight)
        array(f"{name}_bias_{seed}", layer.bias)
    torch.manual_seed(seed)
    layer = nn.Conv1d(4, 6, 3, groups=2)
    array(f"conv1d_weight_{seed}", layer.weight)
    array(f"conv1d_bias_{seed}", layer.bias)
    torch.manual_seed(seed)
    array(f"embedding_weight_{seed}", nn.Embedding(10, 3, padding_idx=-2).weight)
    attention = nn.MultiheadAttention(4, 2)
    array(f"attention_in_weight_{seed}", attention.in_proj_weight)
    array(f"attention_out_weight_{seed}", attention.out_proj.weight)
    torch.manual_seed(seed)
    array(f"autoencoder_sum_{seed}", torch.tensor(checksum(Autoencoder()), dtype=torch.float64))

# Results in f64 of layers; both sides compute the parameters and input from a formula.
F = nn.functional
run("conv_strided", lambda x, w, b: F.conv2d(x, w, b, stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2),
    ramp(1, 4, 5, 6), ramp(2, 2, 3, 2), ramp(2))
run("conv_transpose_strided",
    lambda x, w, b: F.conv_transpose2d(x, w, b, stride=(2, 3), padding=1, output_padding=(1, 2), groups=2, dilation=(2, 1)),
    ramp(1, 4, 3, 2), ramp(4, 2, 3, 3), ramp(4))
run("max_pool", lambda x: F.max_pool2d(x, (3, 2), stride=2, padding=1, ceil_mode=True), ramp(1, 2, 6, 5))
run("max_pool_dilated", lambda x: F.max_pool2d(x, 3, stride=(2, 1), padding=1, dilation=(1, 2), ceil_mode=True),
    ramp(1, 2, 6, 7))
run("avg_pool", lambda x: F.avg_pool2d(x, (3, 2), stride=2, padding=1, ceil_mode=True), ramp(1, 2, 6, 5))
run("avg_pool_inside", lambda x: F.avg_pool2d(x, 3, stride=2, padding=1, ceil_mode=True, count_include_pad=False),
    ramp(1, 2, 6, 5))
run("avg_pool_divisor", lambda x: F.avg_pool2d(x, 2, divisor_override=3), ramp(1, 2, 4, 5))
run("adaptive_avg_pool", lambda x: F.adaptive_avg_pool2d(x, (3, 2)), ramp(1, 2, 5, 7))
run("adaptive_max_pool", lambda x: F.adaptive_max_pool2d(x, (3, 2)), ramp(1, 2, 5, 7))
run("layer_norm", lambda x, w, b: F.layer_norm(x, (3, 2), w, b), ramp(4, 3, 2), ramp(3, 2), ramp(3, 2) * 0.5)
index = torch.tensor([[4, 0, 3], [3, 3, 1]])
run("embedding", lambda w: F.embedding(index, w), ramp(5, 2))
run("embedding_padded", lambda w: F.embedding(index, w, padding_idx=-2), ramp(5, 2))


def run_batch_norm(name, momentum, layer=nn.BatchNorm2d, shape=(2, 3, 4, 5), eval_shape=(1, 3, 1, 2)):
    """Two training steps and an evaluation; the state after them."""
    bn = layer(3, momentum=momentum).double()
    bn.weight.data = ramp(3) + 2
    bn.bias.data = ramp(3)
    for step, scale in enumerate((1, 2)):
        x = (ramp(*shape) * scale).requires_grad_()
        y = bn(x)
        bn.zero_grad()
        y.backward(ramp(*y.shape))
        array(f"{name}_y{step}", y)
        array(f"{name}_grad_x{step}", x.grad)
        array(f"{name}_grad_w{step}", bn.weight.grad)
        array(f"{name}_grad_b{step}", bn.bias.grad)
    array(f"{name}_running_mean", bn.running_mean)
    array(f"{name}_running_var", bn.running_var)
    bn.eval()
    x = ramp(*eval_shape).requires_grad_()
    y = bn(x)
    y.backward(ramp(*y.shape))
    array(f"{name}_eval_y", y)
    array(f"{name}_eval_grad_x", x.grad)


run_batch_norm("batch_norm", 0.1)
run_batch_norm("batch_norm_cumulative", None)
run_batch_norm("batch_norm_rows", 0.1, nn.BatchNorm1d, (5, 3), (1, 3))
run_batch_norm("batch_norm_sequences", None, nn.BatchNorm1d, (2, 3, 4), (1, 3, 2))
target = torch.tensor([2, -100, 0, 1])
run("cross_entropy", lambda x: F.cross_entropy(x, target, label_smoothing=0.1), ramp(4, 3) * 3)
run("mse", lambda x, t: F.mse_loss(x, t), ramp(2, 3), ramp(3, 2).reshape(2, 3) * 0.5)
save(__file__)
