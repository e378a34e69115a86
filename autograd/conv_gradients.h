// The two gradients of a convolution as recorded operations: what the rule of conv2d computes in a
// backward that is recorded. A convolution is linear in its input and in its weight, so each of the
// three operations is the derivative of the other two. Private to autograd/.
#pragma once

#include "weft/kernels/conv.h"
#include "weft/tensor/tensor.h"

namespace weft::autograd {

/// dL/dx [N,C,H,W] from g = dL/dy [N,K,Ho,Wo] and w.
Tensor conv_gradient_of_x(const Tensor& g, const Tensor& w, const Shape& x_shape,
                          const Conv2dParams& params, MemoryFormat format);
/// dL/dw from x and g = dL/dy.
Tensor conv_gradient_of_w(const Tensor& x, const Tensor& g, const Shape& w_shape,
                          const Conv2dParams& params);

}  // namespace weft::autograd
