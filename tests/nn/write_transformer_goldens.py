#!/usr/bin/env python3
"""Writes transformer_goldens.safetensors: nn.TransformerEncoder and its layer of PyTorch 2.11, CPU, in f64.

usage: python3 tests/nn/write_transformer_goldens.py   (needs torch and safetensors)
Each list has the output, the gradient of the input and those of the parameters. Two heads of two features, six
features between the linear layers. NAME_init_SEED has the initial values of all parameters, f32.
"""
import torch
from torch import nn

from golden_arrays import array, arrays, ramp, save


def run(name, module, shape, **call):
    module = module.double()
    for i, p in enumerate(module.parameters()):
        p.data = ramp(*p.shape) * (0.5 + 0.03 * i)
    x = ramp(*shape).requires_grad_()
    y = module(x, **call)
    y.backward(ramp(*y.shape))
    arrays(name, [y, x.grad] + [p.grad for p in module.parameters()])


def layer(**options):
    return nn.TransformerEncoderLayer(4, 2, 6, dropout=0, **options)


padding = torch.tensor([[False, False, True], [False, False, False]])
causal = torch.ones(3, 3).triu(1).bool()
run("layer", layer(), (3, 2, 4))
run("layer_norm_first", layer(activation="gelu", norm_first=True, batch_first=True, layer_norm_eps=1e-3), (2, 3, 4),
    src_key_padding_mask=padding)
run("layer_without_bias", layer(bias=False), (3, 4))
run("layer_causal", layer(batch_first=True).eval(), (2, 3, 4), src_mask=causal, is_causal=True)
encoder = nn.TransformerEncoder(layer(), 2, nn.LayerNorm(4), enable_nested_tensor=False)
run("encoder", encoder, (3, 2, 4), mask=ramp(3, 3), src_key_padding_mask=torch.zeros(2, 3).double().masked_fill(
    padding, -torch.inf))
for seed in (0, 7):
    torch.manual_seed(seed)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 6), 2, enable_nested_tensor=False)
    array(f"encoder_init_{seed}", torch.cat([p.flatten() for p in encoder.parameters()]))
save(__file__)
