// What a backward that is recorded computes in place of fused kernels: the same gradients, of
// operations that the tape knows. Private to autograd/.
#pragma once

#include "weft/autograd/graph.h"
#include "weft/kernels/conv.h"
#include "weft/kernels/elementwise.h"
#include "weft/tensor/tensor.h"

namespace weft::autograd {

/// g dy/dx of a unary operation, by the formulas of kernels/functors.h. `saved` is its x or its y,
/// whichever its functor says.
Tensor unary_gradient(UnaryOp op, const UnaryParams& params, const Tensor& g, const Tensor& saved);
/// g dy/da, or g dy/db, of y = op(a, b), of the shape to which a and b are broadcast.
Tensor binary_gradient(BinaryOp op, bool of_b, const Tensor& g, const Tensor& a, const Tensor& b);

/// dL/d(the value before relu), if y, the result of `node`, was saved because it ends in relu; by
/// the recorded rule or the kernel, as the backward asks. Takes dL/dy out of `grads`. Without y:
/// dL/dy.
Tensor gradient_before_relu(Gradients& grads, const SavedTensor& y, const Node& node);

/// The format that the gradient of an image or a weight gets: that of x, nchw if x is in both or in
/// none.
inline MemoryFormat format_of(const Tensor& x) {
  return x.is_channels_last() && !x.is_contiguous() ? MemoryFormat::nhwc : MemoryFormat::nchw;
}

/// The gradients of a convolution's input and weight. A convolution is linear in each of the two,
/// so each of the three operations is the derivative of the other two.
Tensor conv_gradient_of_x(const Tensor& g, const Tensor& w, const Shape& x_shape,
                          const Conv2dParams& params, MemoryFormat format);
Tensor conv_gradient_of_w(const Tensor& x, const Tensor& g, const Shape& w_shape,
                          const Conv2dParams& params, MemoryFormat format);

}  // namespace weft::autograd
