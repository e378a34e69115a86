// 2-D max pooling.
#pragma once

#include <array>
#include <cstdint>

#include "weft/core/runtime.h"
#include "weft/kernels/view.h"

namespace weft {

/// Pairs are (height, width). Ho = (H + 2 p - d (k-1) - 1) / s + 1, rounded up with ceil_mode (a
/// window that would start beyond the padded input is dropped).
struct Pool2dParams {
  std::array<std::int64_t, 2> kernel = {1, 1};
  std::array<std::int64_t, 2> stride = {1, 1};
  std::array<std::int64_t, 2> padding = {0, 0};
  std::array<std::int64_t, 2> dilation = {1, 1};
  bool ceil_mode = false;
};

struct PoolingKernels {
  /// x [N,C,H,W] nchw or nhwc, y [N,C,Ho,Wo] and index of x's layout. index (i32): h*W + w of the
  /// winner, the first in row order; a NaN wins. f32, f64, bf16.
  void (*max_pool2d)(const Stream&, const Pool2dParams&, const View& x, const View& y,
                     const View& index);
  /// grad_x is overwritten. All three of one layout.
  void (*max_pool2d_backward)(const Stream&, const Pool2dParams&, const View& grad_y,
                              const View& index, const View& grad_x);
};

}  // namespace weft
