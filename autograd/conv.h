// Convolution, recorded on the tape. tensor/ops.h has what is not said here. Also takes an image
// without a batch, x [C,H,W] or [C,L], and gives one.
#pragma once

#include <cstdint>

#include "weft/kernels/conv.h"
#include "weft/tensor/tensor.h"

namespace weft {

Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& bias = {},
              const Conv2dParams& params = {}, Activation then = Activation::none);
/// As conv2d with params.transposed = true.
Tensor conv_transpose2d(const Tensor& x, const Tensor& w, const Tensor& bias = {},
                        Conv2dParams params = {}, Activation then = Activation::none);

struct Conv1dParams {
  std::int64_t stride = 1;
  std::int64_t padding = 0;
  std::int64_t dilation = 1;
  std::int64_t groups = 1;
};
/// x [N,C,L], w [K,C/groups,R], bias [K] or undefined -> [N,K,Lo]: a conv2d of images of one row.
/// kernels/conv.h has the formula of Lo.
Tensor conv1d(const Tensor& x, const Tensor& w, const Tensor& bias = {},
              const Conv1dParams& params = {});

}  // namespace weft
