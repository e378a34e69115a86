// Matrix products, recorded on the tape. tensor/ops.h has what is not said here.
#pragma once

#include "weft/kernels/activation.h"
#include "weft/tensor/tensor.h"

namespace weft {

Tensor matmul(const Tensor& a, const Tensor& b);
/// As raw::matmul with out_dtype; in backward the gradient is rounded to the operands' dtype.
/// Autocast leaves the operands as they are. No vectors (else Shape).
Tensor matmul(const Tensor& a, const Tensor& b, DType out_dtype);
Tensor linear(const Tensor& x, const Tensor& w, const Tensor& bias = {},
              Activation then = Activation::none);
/// a [n], b [n] of one dtype: the sum of a * b, as torch.dot.
Tensor dot(const Tensor& a, const Tensor& b);
/// a [n], b [m]: the products of all pairs [n,m].
Tensor outer(const Tensor& a, const Tensor& b);

}  // namespace weft
