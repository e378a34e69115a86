// The derivatives of the element-wise operations, composed of recorded operations: what a backward
// that is recorded computes in place of the fused functors (kernels/functors.h), whose formulas
// these are. Private to autograd/.
#pragma once

#include "weft/kernels/elementwise_list.h"
#include "weft/tensor/tensor.h"

namespace weft::autograd {

/// g dy/dx of a unary operation. `saved` is its x or its y, whichever its functor says.
Tensor unary_gradient(UnaryOp op, const UnaryParams& params, const Tensor& g, const Tensor& saved);

/// g dy/da, or g dy/db, of y = op(a, b), of the shape to which a and b are broadcast.
Tensor binary_gradient(BinaryOp op, bool of_b, const Tensor& g, const Tensor& a, const Tensor& b);

}  // namespace weft::autograd
