#!/usr/bin/env python3
"""Writes attention_goldens.safetensors: nn.MultiheadAttention of PyTorch 2.11, CPU, in f64.

usage: python3 tests/nn/write_attention_goldens.py   (needs torch and safetensors)
Each list has the output, the weights where they are wanted, the gradients of the inputs and those of
the parameters. Two heads of two features, two sequences of 3 queries and 5 keys.
"""
import math

import torch
from torch import nn

from golden_arrays import arrays, ramp, save


def run(name, shapes, options={}, **call):
    """Of one shape: self-attention."""
    attention = nn.MultiheadAttention(4, 2, **options).double()
    for p in attention.parameters():
        p.data = ramp(*p.shape)
    inputs = [(ramp(*s) * (1 + 0.3 * i)).requires_grad_() for i, s in enumerate(shapes)]
    outputs = [t for t in attention(*(inputs * 3)[:3], **call) if t is not None]
    torch.autograd.backward(outputs, [ramp(*t.shape) for t in outputs])
    arrays(name, outputs + [t.grad for t in inputs + list(attention.parameters())])


three = [(3, 2, 4), (5, 2, 4), (5, 2, 4)]
three_batch_first = [(2, 3, 4), (2, 5, 4), (2, 5, 4)]
padding = torch.tensor([[False, True, False, False, True], [True, False, False, False, False]])
causal = torch.ones(3, 3).triu(1).bool()
run("self_attention", [(3, 2, 4)])
run("cross_attention", three, average_attn_weights=False)
run("cross_attention_padded", three_batch_first, {"batch_first": True}, key_padding_mask=padding)
run("causal_attention", [(2, 3, 4)], {"batch_first": True}, attn_mask=causal, is_causal=True, need_weights=False)
run("masked_attention", three, attn_mask=ramp(4, 3, 5) * 3, need_weights=False)
run("attention_masked_twice", three_batch_first, {"batch_first": True}, attn_mask=ramp(3, 5),
    key_padding_mask=torch.zeros(2, 5, dtype=torch.float64).masked_fill(padding, -math.inf))
blind = padding.clone()
blind[1] = True
run("attention_to_nothing", three_batch_first, {"batch_first": True}, key_padding_mask=blind, need_weights=False)
run("unbatched_attention", [(3, 4), (5, 4), (5, 4)], {"bias": False}, key_padding_mask=padding[0])
save(__file__)
