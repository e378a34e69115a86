#!/usr/bin/env python3
"""Writes autocast_goldens.h: what dtypes PyTorch's operations give under autocast to bf16.

usage: python3 tests/nn/write_autocast_goldens.py > tests/nn/autocast_goldens.h   (needs torch, no GPU)
CUDA's are those of fake tensors, which pass the same dispatcher and compute nothing.
"""
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode


def operations(x, image):
    """x [4,8] and image [2,3,8,8] of one dtype, the other operands f32."""
    def f32(*shape):
        return torch.zeros(shape, device=x.device)

    same, target = f32(4, 8), torch.zeros(4, dtype=torch.int64, device=x.device)
    channels = f32(3)
    unary = {name: lambda name=name: getattr(torch, name)(x) for name in
             ("neg abs sign square sqrt rsqrt reciprocal exp log sin cos tanh sigmoid relu "
              "floor ceil round log1p expm1 erf tan trunc").split()}
    return unary | {
        "linear": lambda: F.linear(x, f32(3, 8), f32(3)),
        "matmul": lambda: torch.matmul(x, f32(8, 3)),
        "matmul_vectors": lambda: torch.matmul(x[0], f32(8)),
        "dot": lambda: torch.dot(x[0], x[1]),
        "conv2d": lambda: F.conv2d(image, f32(4, 3, 3, 3), f32(4)),
        "conv_transpose2d": lambda: F.conv_transpose2d(image, f32(3, 4, 3, 3), f32(4)),
        "softmax": lambda: F.softmax(x, 1),
        "log_softmax": lambda: F.log_softmax(x, 1),
        "cross_entropy": lambda: F.cross_entropy(x, target),
        "nll_loss": lambda: F.nll_loss(x, target),
        "mse_loss": lambda: F.mse_loss(x, same),
        "bce_with_logits": lambda: F.binary_cross_entropy_with_logits(x, same),
        "l1_loss": lambda: F.l1_loss(x, same),
        "smooth_l1_loss": lambda: F.smooth_l1_loss(x, same),
        "batch_norm": lambda: F.batch_norm(image, channels, channels, channels, channels, True),
        "layer_norm": lambda: F.layer_norm(x, (8,), f32(8), f32(8)),
        "cat": lambda: torch.cat([x, same]),
        "stack": lambda: torch.stack([x, same]),
        "where": lambda: torch.where(same == 0, x, same),
        "add": lambda: x + same,
        "add_alike": lambda: x + x,
        "mul_scalar": lambda: x * 2.0,
        "rdiv_scalar": lambda: 1.0 / x,
        "div_scalar": lambda: x / 2.0,
        "pow_scalar": lambda: x**2.5,
        "pow": lambda: x**x,
        "maximum": lambda: torch.maximum(x, same),
        "sum": lambda: x.sum(1),
        "mean": lambda: x.mean(1),
        "prod": lambda: x.prod(1),
        "norm": lambda: x.norm(),
        "var": lambda: x.var(1),
        "max": lambda: x.amax(1),
        "leaky_relu": lambda: F.leaky_relu(x),
        "gelu": lambda: F.gelu(x),
        "gelu_tanh": lambda: F.gelu(x, approximate="tanh"),
        "log_sigmoid": lambda: F.logsigmoid(x),
        "silu": lambda: F.silu(x),
        "elu": lambda: F.elu(x),
        "softplus": lambda: F.softplus(x),
        "clamp": lambda: x.clamp(0, 1),
        "max_pool2d": lambda: F.max_pool2d(image, 2),
        "avg_pool2d": lambda: F.avg_pool2d(image, 2),
        "adaptive_avg_pool2d": lambda: F.adaptive_avg_pool2d(image, 2),
        "adaptive_max_pool2d": lambda: F.adaptive_max_pool2d(image, 2),
        "interpolate": lambda: F.interpolate(image, 4, mode="bilinear"),
        "group_norm": lambda: F.group_norm(image, 3, channels, channels),
        "conv1d": lambda: F.conv1d(x[None], f32(3, 4, 3), f32(3)),
        "normalize": lambda: F.normalize(x),
        "gather": lambda: x.gather(1, target[:, None]),
        "index_select": lambda: x.index_select(0, target),
        "embedding": lambda: F.embedding(target, x),
        "attention": lambda: F.scaled_dot_product_attention(x[None], f32(1, 5, 8), f32(1, 5, 8), f32(4, 5)),
        "dropout": lambda: F.dropout(x),
    }


def results(device, dtype):
    # The same as torch.autocast, which refuses CUDA on a machine without it.
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, torch.bfloat16)
    with FakeTensorMode():
        x = torch.ones(4, 8, dtype=dtype, device=device)
        image = torch.ones(2, 3, 8, 8, dtype=dtype, device=device)
        found = {name: f().dtype for name, f in operations(x, image).items()}
    torch.set_autocast_enabled(device, False)
    return found


columns = [results(device, dtype) for device in ("cpu", "cuda")
           for dtype in (torch.float32, torch.bfloat16)]
names = {torch.float32: "DType::f32", torch.bfloat16: "DType::bf16"}
version = torch.__version__.split("+")[0]
print(f"// Written by write_autocast_goldens.py with PyTorch {version}.")
print('#pragma once\n\n#include "weft/core/base/dtype.h"\n\nnamespace weft::goldens {\n')
print("/// The result's dtype by kind of device and the operand's dtype, f32 or bf16.")
print("struct Autocast {\n  const char* op;\n  DType result[2][2];\n};\n")
print("inline const Autocast autocast[] = {")
for op in columns[0]:
    cpu32, cpu16, cuda32, cuda16 = (names[c[op]] for c in columns)
    print(f'    {{"{op}", {{{{{cpu32}, {cpu16}}}, {{{cuda32}, {cuda16}}}}}}},')
print("};\n\n}  // namespace weft::goldens")
