// Written by write_autocast_goldens.py with PyTorch 2.11.0. Do not edit.
#pragma once

#include "weft/core/dtype.h"

namespace weft::goldens {

/// The result's dtype by kind of device and the operand's dtype, f32 or bf16.
struct Autocast {
  const char* op;
  DType result[2][2];
};

inline const Autocast autocast[] = {
    {"neg", {{DType::f32, DType::bf16}, {DType::f32, DType::bf16}}},
    {"abs", {{DType::f32, DType::bf16}, {DType::f32, DType::bf16}}},
    {"sign", {{DType::f32, DType::bf16}, {DType::f32, DType::bf16}}},
    {"square", {{DType::f32, DType::bf16}, {DType::f32, DType::f32}}},
    {"sqrt", {{DType::f32, DType::bf16}, {DType::f32, DType::bf16}}},
    {"rsqrt", {{DType::f32, DType::bf16}, {DType::f32, DType::f32}}},
    {"reciprocal", {{DType::f32, DType::bf16}, {DType::f32, DType::f32}}},
    {"exp", {{DType::f32, DType::bf16}, {DType::f32, DType::f32}}},
    {"log", {{DType::f32, DType::bf16}, {DType::f32, DType::f32}}},
    {"sin", {{DType::f32, DType::bf16}, {DType::f32, DType::bf16}}},
    {"cos", {{DType::f32, DType::bf16}, {DType::f32, DType::bf16}}},
    {"tanh", {{DType::f32, DType::bf16}, {DType::f32, DType::bf16}}},
    {"sigmoid", {{DType::f32, DType::bf16}, {DType::f32, DType::bf16}}},
    {"relu", {{DType::f32, DType::bf16}, {DType::f32, DType::bf16}}},
    {"floor", {{DType::f32, DType::bf16}, {DType::f32, DType::bf16}}},
    {"ceil", {{DType::f32, DType::bf16}, {DType::f32, DType::bf16}}},
    {"round", {{DType::f32, DType::bf16}, {DType::f32, DType::bf16}}},
    {"log1p", {{DType::f32, DType::bf16}, {DType::f32, DType::f32}}},
    {"expm1", {{DType::f32, DType::bf16}, {DType::f32, DType::f32}}},
    {"erf", {{DType::f32, DType::bf16}, {DType::f32, DType::bf16}}},
    {"tan", {{DType::f32, DType::bf16}, {DType::f32, DType::f32}}},
    {"trunc", {{DType::f32, DType::bf16}, {DType::f32, DType::bf16}}},
    {"linear", {{DType::bf16, DType::bf16}, {DType::bf16, DType::bf16}}},
    {"matmul", {{DType::bf16, DType::bf16}, {DType::bf16, DType::bf16}}},
    {"conv2d", {{DType::bf16, DType::bf16}, {DType::bf16, DType::bf16}}},
    {"conv_transpose2d", {{DType::bf16, DType::bf16}, {DType::bf16, DType::bf16}}},
    {"softmax", {{DType::f32, DType::bf16}, {DType::f32, DType::f32}}},
    {"log_softmax", {{DType::f32, DType::bf16}, {DType::f32, DType::f32}}},
    {"cross_entropy", {{DType::f32, DType::f32}, {DType::f32, DType::f32}}},
    {"nll_loss", {{DType::f32, DType::f32}, {DType::f32, DType::f32}}},
    {"mse_loss", {{DType::f32, DType::f32}, {DType::f32, DType::f32}}},
    {"bce_with_logits", {{DType::f32, DType::f32}, {DType::f32, DType::f32}}},
    {"l1_loss", {{DType::f32, DType::f32}, {DType::f32, DType::f32}}},
    {"smooth_l1_loss", {{DType::f32, DType::f32}, {DType::f32, DType::f32}}},
    {"batch_norm", {{DType::f32, DType::bf16}, {DType::f32, DType::bf16}}},
    {"layer_norm", {{DType::f32, DType::bf16}, {DType::f32, DType::f32}}},
    {"cat", {{DType::f32, DType::f32}, {DType::f32, DType::f32}}},
    {"stack", {{DType::f32, DType::f32}, {DType::f32, DType::f32}}},
    {"where", {{DType::f32, DType::f32}, {DType::f32, DType::f32}}},
    {"add", {{DType::f32, DType::f32}, {DType::f32, DType::f32}}},
    {"add_alike", {{DType::f32, DType::bf16}, {DType::f32, DType::bf16}}},
    {"mul_scalar", {{DType::f32, DType::bf16}, {DType::f32, DType::bf16}}},
    {"rdiv_scalar", {{DType::f32, DType::bf16}, {DType::f32, DType::f32}}},
    {"div_scalar", {{DType::f32, DType::bf16}, {DType::f32, DType::bf16}}},
    {"pow_scalar", {{DType::f32, DType::bf16}, {DType::f32, DType::f32}}},
    {"pow", {{DType::f32, DType::bf16}, {DType::f32, DType::f32}}},
    {"maximum", {{DType::f32, DType::f32}, {DType::f32, DType::f32}}},
    {"sum", {{DType::f32, DType::bf16}, {DType::f32, DType::f32}}},
    {"mean", {{DType::f32, DType::bf16}, {DType::f32, DType::bf16}}},
    {"prod", {{DType::f32, DType::f32}, {DType::f32, DType::f32}}},
    {"norm", {{DType::f32, DType::bf16}, {DType::f32, DType::f32}}},
    {"var", {{DType::f32, DType::bf16}, {DType::f32, DType::bf16}}},
    {"max", {{DType::f32, DType::bf16}, {DType::f32, DType::bf16}}},
    {"leaky_relu", {{DType::f32, DType::bf16}, {DType::f32, DType::bf16}}},
    {"gelu", {{DType::f32, DType::bf16}, {DType::f32, DType::bf16}}},
    {"gelu_tanh", {{DType::f32, DType::bf16}, {DType::f32, DType::bf16}}},
    {"log_sigmoid", {{DType::f32, DType::bf16}, {DType::f32, DType::bf16}}},
    {"clamp", {{DType::f32, DType::bf16}, {DType::f32, DType::bf16}}},
    {"max_pool2d", {{DType::f32, DType::bf16}, {DType::f32, DType::bf16}}},
    {"avg_pool2d", {{DType::f32, DType::bf16}, {DType::f32, DType::bf16}}},
    {"adaptive_avg_pool2d", {{DType::f32, DType::bf16}, {DType::f32, DType::bf16}}},
    {"gather", {{DType::f32, DType::bf16}, {DType::f32, DType::bf16}}},
    {"index_select", {{DType::f32, DType::bf16}, {DType::f32, DType::bf16}}},
};

}  // namespace weft::goldens
