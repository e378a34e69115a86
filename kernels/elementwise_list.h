// The element-wise operations. Each has one functor (kernels/functors.h) and one line in a list.
// Its enum value, CPU loop, CUDA kernel, backward rule and test case are generated from this line.
//
// Headers that are included everywhere do not include this one: a new operation recompiles what
// computes element by element, and not all of weft.
#pragma once

#include <cstdint>

#include "weft/kernels/elementwise.h"

namespace weft {

// clang-format off: the lists read as tables
// X(enum value, function name, functor, integer types too?, low and high end of the test domain).
// The test domains avoid kinks and poles, so that finite differences are valid.
#define WEFT_UNARY_OPS(X)                                     \
  X(neg, neg, Neg, true, -3, 3)                               \
  X(abs, abs, Abs, true, 0.1, 3)                              \
  X(sign, sign, Sign, true, 0.1, 3)                           \
  X(square, square, Square, true, -3, 3)                      \
  X(sqrt, sqrt, Sqrt, false, 0.1, 3)                          \
  X(rsqrt, rsqrt, Rsqrt, false, 0.1, 3)                       \
  X(reciprocal, reciprocal, Reciprocal, false, 0.2, 3)        \
  X(exp, exp, Exp, false, -3, 3)                              \
  X(log, log, Log, false, 0.1, 3)                             \
  X(log1p, log1p, Log1p, false, -0.8, 3)                      \
  X(expm1, expm1, Expm1, false, -3, 3)                        \
  X(erf, erf, Erf, false, -3, 3)                              \
  X(tan, tan, Tan, false, -1.2, 1.2)                          \
  X(sin, sin, Sin, false, -3, 3)                              \
  X(cos, cos, Cos, false, -3, 3)                              \
  X(tanh, tanh, Tanh, false, -3, 3)                           \
  X(sigmoid, sigmoid, Sigmoid, false, -3, 3)                  \
  X(relu, relu, Relu, true, 0.1, 3)                           \
  X(gelu, gelu, Gelu, false, -3, 3)                           \
  X(gelu_tanh, gelu_tanh, GeluTanh, false, -3, 3)             \
  X(log_sigmoid, log_sigmoid, LogSigmoid, false, -3, 3)       \
  X(silu, silu, Silu, false, -3, 3)                           \
  X(floor, floor, Floor, true,  0.1, 0.9)                     \
  X(ceil, ceil, Ceil, true,  0.1, 0.9)                        \
  X(round, round, Round, true,  0.6, 0.9)                     \
  X(trunc, trunc, Trunc, true,  0.1, 0.9)

// X(enum value, functor, integer types too?): operations of one tensor and one or two scalars.
#define WEFT_SCALAR_OPS(X)               \
  X(add_scalar, AddScalar, true)         \
  X(mul_scalar, MulScalar, true)         \
  X(rsub_scalar, RsubScalar, true)       \
  X(rdiv_scalar, RdivScalar, false)      \
  X(pow_scalar, PowScalar, true)        \
  X(leaky_relu, LeakyRelu, false)        \
  X(elu, Elu, false)                     \
  X(softplus, Softplus, false)           \
  X(smooth_l1, SmoothL1, false)          \
  X(clamp, Clamp, true)

// X(enum value, function name, functor, integer types too?, test domain of a and b)
#define WEFT_BINARY_OPS(X)                       \
  X(add, add, Add, true, -3, 3)                  \
  X(sub, sub, Sub, true, -3, 3)                  \
  X(mul, mul, Mul, true, -3, 3)                  \
  X(div, div, Div, false, 0.3, 3)                \
  X(pow, pow, Pow, true,  0.3, 3)                \
  X(maximum, maximum, Maximum, true, -3, 3)      \
  X(minimum, minimum, Minimum, true, -3, 3)      \
  X(remainder, remainder, Remainder, true, 0.3, 3)           \
  X(floor_divide, floor_divide, FloorDivide, true, 0.3, 3)

// X(enum value, function name, C++ expression of a and b)
#define WEFT_COMPARE_OPS(X)                          \
  X(eq, eq, a == b)                                  \
  X(ne, ne, a != b)                                  \
  X(lt, lt, a < b)                                   \
  X(le, le, a <= b)                                  \
  X(gt, gt, a > b)                                   \
  X(ge, ge, a >= b)                                  \
  X(logical_and, logical_and, (a != 0) && (b != 0))  \
  X(logical_or, logical_or, (a != 0) || (b != 0))    \
  X(logical_xor, logical_xor, (a != 0) != (b != 0))

// clang-format on

enum class UnaryOp : std::uint8_t {
#define WEFT_VALUE(value, ...) value,
  WEFT_UNARY_OPS(WEFT_VALUE) WEFT_SCALAR_OPS(WEFT_VALUE)
#undef WEFT_VALUE
};
enum class BinaryOp : std::uint8_t {
#define WEFT_VALUE(value, ...) value,
  WEFT_BINARY_OPS(WEFT_VALUE)
#undef WEFT_VALUE
};
enum class CompareOp : std::uint8_t {
#define WEFT_VALUE(value, ...) value,
  WEFT_COMPARE_OPS(WEFT_VALUE)
#undef WEFT_VALUE
};

}  // namespace weft
