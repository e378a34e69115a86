// weft::raw: the element-wise operations of kernels/elementwise_list.h by their names. What is
// common to them is in tensor/ops.h.
#pragma once

#include "weft/kernels/elementwise_list.h"
#include "weft/tensor/ops.h"

namespace weft::raw {

// exp(x), sqrt(x), ...: an integer x is computed in f32 if the operation does not map integers to
// integers. floor, ceil, round and trunc return integers as they are.
#define WEFT_DECLARE(value, name, ...) Tensor name(const Tensor& x);
WEFT_UNARY_OPS(WEFT_DECLARE)
#undef WEFT_DECLARE
// add(a, b), maximum(a, b), ... A power of integers is an integer, modulo 2^bits. With a negative
// exponent it throws InvalidArgument if b is a double; if b is an integer tensor, the result is
// rounded towards 0. remainder has the sign of b and floor_divide rounds down, as % and // in
// Python. For integers they throw InvalidArgument if a divisor is 0; to see this, the call waits
// for CUDA.
#define WEFT_DECLARE(value, name, ...)           \
  Tensor name(const Tensor& a, const Tensor& b); \
  Tensor name(const Tensor& a, double b);
WEFT_BINARY_OPS(WEFT_DECLARE)
#undef WEFT_DECLARE
Tensor sub(double a, const Tensor& b);
Tensor div(double a, const Tensor& b);
// eq(a, b), lt(a, b), ...: the result is boolean.
#define WEFT_DECLARE(value, name, ...)           \
  Tensor name(const Tensor& a, const Tensor& b); \
  Tensor name(const Tensor& a, double b);
WEFT_COMPARE_OPS(WEFT_DECLARE)
#undef WEFT_DECLARE

}  // namespace weft::raw
