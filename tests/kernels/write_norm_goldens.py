#!/usr/bin/env python3
"""Writes norm_goldens.h: how far PyTorch's batch norm on the CPU is from the result in f64.

usage: write_norm_goldens.py > norm_goldens.h

The images are 1e5 (f32) or 100 (bf16, with f32 parameters) and nearly normal numbers, the sums of 12
uniform ones: the variance of such numbers is what a careless sum loses. norm_test.cc makes the same
numbers and asks for at most twice PyTorch's error.
"""
import numpy as np
import torch
import torch.nn.functional as F

SHAPE = (8, 16, 24, 24)
EPS = 1e-5


def uniform(n, low, high, seed):
    """random_values() of tests/kernels/device_buffers.h."""
    out = np.empty(n)
    for i in range(n):
        seed = (seed * 6364136223846793005 + 1442695040888963407) % 2**64
        out[i] = low + (high - low) * float(seed >> 11) * 2.0**-53
    return out


def normal(n, mean, seed):
    return mean + (uniform(12 * n, 0, 1, seed).reshape(n, 12).cumsum(axis=1)[:, -1] - 6)


def run(x, weight, bias, grad_y):
    """y, grad_x, grad_weight, grad_bias, running_mean and running_var in f64."""
    x, weight, bias = (t.clone().requires_grad_() for t in (x, weight, bias))
    mean, var = torch.zeros_like(weight), torch.ones_like(weight)
    y = F.batch_norm(x, mean, var, weight, bias, True, 1.0, EPS)
    y.backward(grad_y)
    return [t.detach().double() for t in (y, x.grad, weight.grad, bias.grad, mean, var)]


def main():
    n, channels = int(np.prod(SHAPE)), SHAPE[1]
    print("""// Written by write_norm_goldens.py with PyTorch %s. Do not edit.
#pragma once

#include "weft/core/base/dtype.h"

namespace weft::testing {

/// The largest errors of PyTorch's batch norm of images of that mean in channels last or not.
struct BatchNormErrors {
  DType dtype;
  bool channels_last;
  double mean;
  double y, grad_x, grad_weight, grad_bias, running_mean, running_var;
};

inline constexpr BatchNormErrors kBatchNormErrors[] = {""" % torch.__version__.split("+")[0])
    for name, dtype, mean in (("f32", torch.float32, 1e5), ("bf16", torch.bfloat16, 100.0)):
        x = torch.from_numpy(normal(n, mean, 1)).reshape(SHAPE).to(dtype)
        grad_y = torch.from_numpy(normal(n, 0.0, 2)).reshape(SHAPE).to(dtype)
        weight = torch.from_numpy(uniform(channels, -2, 2, 3)).float()
        bias = torch.from_numpy(uniform(channels, -1, 1, 4)).float()
        exact = run(*(t.double() for t in (x, weight, bias, grad_y)))
        for last in (False, True):
            layout = torch.channels_last if last else torch.contiguous_format
            got = run(x.contiguous(memory_format=layout), weight, bias, grad_y.contiguous(memory_format=layout))
            errors = [float((a - b).abs().max()) for a, b in zip(got, exact)]
            print("    {DType::%s, %s, %g, %s}," % (name, "true" if last else "false", mean,
                                                    ", ".join("%.3g" % e for e in errors)))
    print("};\n\n}  // namespace weft::testing")


if __name__ == "__main__":
    main()
