#!/usr/bin/env python3
"""Writes elementwise_goldens.safetensors: values and gradients of element-wise operations.

usage: python3 tests/autograd/write_elementwise_goldens.py   (needs torch and safetensors)
PyTorch 2.11, CPU. Operands: unary/DTYPE/x, binary/DTYPE/a and .../b. Results: unary/OP/DTYPE/y and
.../grad, binary/OP/DTYPE/y, .../grad_a and .../grad_b; no gradients of integers, and none where
PyTorch has none. They are those of y . (1, -2, 0.5, 1, -2, ...).
"""
import math
import pathlib
import sys
import warnings

import torch
from torch.nn import functional as F

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "nn"))
from golden_arrays import array, save  # noqa: E402

warnings.filterwarnings("ignore", category=UserWarning)
INF, NAN = math.inf, math.nan
DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16}
INTEGERS = {"i64": torch.int64, "i32": torch.int32, "u8": torch.uint8}

UNARY = {name: getattr(torch, name) for name in (
    "neg", "abs", "sign", "square", "sqrt", "rsqrt", "reciprocal", "exp", "log", "log1p", "expm1", "erf", "tan",
    "sin", "cos", "tanh", "sigmoid", "relu", "floor", "ceil", "round", "trunc")}
UNARY |= {"gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "log_sigmoid": F.logsigmoid,
          "silu": F.silu}
SCALAR = {
    "add_number": lambda x: x + 1.5, "sub_number": lambda x: x - 1.5, "mul_number": lambda x: x * -2.5,
    "number_sub": lambda x: 1.5 - x, "number_div": lambda x: 1.5 / x, "div_number": lambda x: x / 3,
    "div_power": lambda x: x / 4,
    "pow_2.5": lambda x: x ** 2.5, "pow_3": lambda x: x ** 3, "pow_-1": lambda x: x ** -1.0,
    "maximum_number": lambda x: torch.maximum(x, torch.tensor(0.5, dtype=x.dtype)),
    "minimum_number": lambda x: torch.minimum(x, torch.tensor(0.5, dtype=x.dtype)),
    "remainder_number": lambda x: torch.remainder(x, -1.5), "floor_divide_number": lambda x: torch.floor_divide(x, -1.5),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.25), "clamp": lambda x: torch.clamp(x, -1, 2),
    "clamp_min": lambda x: torch.clamp(x, min=-1), "clamp_max": lambda x: torch.clamp(x, max=2),
    "elu": lambda x: F.elu(x, 1.5), "softplus": lambda x: F.softplus(x, 2, 5),
    "smooth_l1": lambda x: F.smooth_l1_loss(x, torch.zeros_like(x), reduction="none"),
}
BINARY = {name: getattr(torch, name) for name in (
    "add", "sub", "mul", "div", "pow", "maximum", "minimum", "remainder", "floor_divide")}
COMPARE = {name: getattr(torch, name) for name in (
    "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor")}
# In f32 and bf16 PyTorch's gelu is NaN at infinity and has three correct digits at -3.7, and erf of
# bf16 is 0 up to 1e-10: their goldens are its results in f64, rounded.
FROM_F64 = ("erf", "gelu")
WHOLE_UNARY = ("neg", "abs", "sign", "relu", "square", "floor", "ceil", "round", "trunc")


def values(dtype):
    """Zeros, subnormals, halves, what overflows exp, the largest, infinities, NaN."""
    info = torch.finfo(dtype)
    tiny = info.smallest_normal / 16
    some = [0.0, tiny, info.smallest_normal, 1e-10, 0.1, 0.5, 0.75, 1.0, 1.5, 2.5, 3.7, 10.0, 30.0, 88.0, 720.0, 1e6,
            info.max, INF]
    return torch.tensor([s * v for v in some for s in (1, -1)] + [NAN], dtype=torch.float64).to(dtype)


def pairs(dtype):
    info = torch.finfo(dtype)
    some = [0.0, -0.0, info.smallest_normal / 16, 1.5, -3.0, info.max, INF, -INF, NAN]
    a = torch.tensor(some, dtype=torch.float64).to(dtype)
    return a.repeat_interleave(len(some)), a.repeat(len(some))


def whole_pairs(dtype):
    some = [0, 1, 2, 7, 100, 250] if dtype == torch.uint8 else [0, 1, -1, 2, -2, 7, -7, 100]
    a = torch.tensor(some, dtype=dtype).repeat_interleave(len(some))
    b = torch.tensor(some, dtype=dtype).repeat(len(some))
    return a[b != 0], b[b != 0]


def upstream(n, dtype):
    return torch.tensor([(1.0, -2.0, 0.5)[i % 3] for i in range(n)], dtype=dtype)


def differentiated(f, *inputs):
    inputs = [i.clone().requires_grad_() for i in inputs]
    y = f(*inputs)
    if "FloorDivide" in type(y.grad_fn).__name__ or "NotImplemented" in type(y.grad_fn).__name__:
        return [y]  # PyTorch has no gradient of it
    y.backward(upstream(y.numel(), y.dtype))
    return [y] + [i.grad for i in inputs]


def unary(op, f, x):
    if op in FROM_F64:
        return [a.to(x.dtype) for a in differentiated(f, x.double())]
    return differentiated(f, x)


def put(kind, op, dtype, tensors):
    for name, t in zip(("y", "grad") if kind == "unary" else ("y", "grad_a", "grad_b"), tensors):
        array(f"{kind}/{op}/{dtype}/{name}", t)


for d, t in (DTYPES | INTEGERS).items():
    floating = d in DTYPES
    x = values(t) if floating else torch.unique(whole_pairs(t)[0])
    a, b = pairs(t) if floating else whole_pairs(t)
    array(f"unary/{d}/x", x)
    array(f"binary/{d}/a", a)
    array(f"binary/{d}/b", b)
    for op, f in (UNARY | SCALAR).items():
        if floating:
            put("unary", op, d, unary(op, f, x))
        elif op in WHOLE_UNARY:
            put("unary", op, d, [f(x)])
    for op, f in BINARY.items():
        if floating:
            put("binary", op, d, differentiated(f, a, b))
        elif op != "div":
            put("binary", op, d, [f(a, b)])
    for op, f in COMPARE.items():
        put("binary", op, d, [f(a, b)])
save(__file__)
