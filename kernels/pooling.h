// 2-D max and average pooling.
#pragma once

#include <array>
#include <cstdint>

#include "weft/core/runtime/runtime.h"
#include "weft/kernels/view.h"

namespace weft {

/// Pairs are (height, width). As torch.nn.functional.max_pool2d: Ho = (H + 2 p - d (k-1) - 1) / s +
/// 1, with the quotient rounded up with ceil_mode; a last window that would start in the padding
/// after the input is dropped. adaptive: Ho is given, and window i covers the positions from
/// floor(i H / Ho) to ceil((i+1) H / Ho), without the end. No number of the pairs is above
/// kMaxPixels.
struct Pool2dParams {
  std::array<std::int64_t, 2> kernel = {1, 1};
  std::array<std::int64_t, 2> stride = {1, 1};
  std::array<std::int64_t, 2> padding = {0, 0};
  std::array<std::int64_t, 2> dilation = {1, 1};
  bool ceil_mode = false;
  bool adaptive = false;  ///< true: nothing above is used
};

/// As torch.nn.functional.avg_pool2d; Ho as above, without dilation.
struct AvgPool2dParams {
  std::array<std::int64_t, 2> kernel = {1, 1};
  std::array<std::int64_t, 2> stride = {1, 1};
  std::array<std::int64_t, 2> padding = {0, 0};
  bool ceil_mode = false;
  bool count_include_pad = true;  ///< the divisor counts padding, not what ceil_mode adds beyond
  std::int64_t divisor = 0;       ///< replaces the number of positions; 0: it does not
  bool adaptive = false;          ///< true: nothing above is used except divisor, which must be 0
};

struct PoolingKernels {
  /// x [N,C,H,W] nchw or nhwc; y [N,C,Ho,Wo] and index have x's layout. index (i32) is h*W + w of
  /// the maximum: of equal values the first in row order, but of NaNs the last one. A dilated
  /// window may contain only padding; it gives -inf and index -1. f32, f64, bf16.
  void (*max_pool2d)(const Stream&, const Pool2dParams&, const View& x, const View& y,
                     const View& index);
  /// grad_x is overwritten. All three have one layout. An index of -1, or another one that is not a
  /// position in x, passes no gradient on.
  void (*max_pool2d_backward)(const Stream&, const Pool2dParams&, const View& grad_y,
                              const View& index, const View& grad_x);
  /// x [N,C,H,W] nchw or nhwc; y [N,C,Ho,Wo] has x's layout: the sum of each window over the
  /// divisor. f32, f64, bf16. Sums in f64, or where x is not f64 in f32 for some 20 terms, and the
  /// sums of those in f64; a sum may be beyond f32 where y is not.
  void (*avg_pool2d)(const Stream&, const AvgPool2dParams&, const View& x, const View& y);
  /// grad_x is overwritten. Both have one layout.
  void (*avg_pool2d_backward)(const Stream&, const AvgPool2dParams&, const View& grad_y,
                              const View& grad_x);
};

}  // namespace weft
