// The windows of a pooling along one axis.
#pragma once

#include <cstdint>

#include "weft/core/base/dtype.h"
#include "weft/kernels/pooling.h"

namespace weft {

/// The windows of a pooling along one axis. Int must have room for the sums of two of these
/// numbers, and of an adaptive pooling for in * out.
template <class Int = std::int64_t>
struct PoolAxis {
  Int in, out;
  Int kernel;  // from the first to behind the last position of a window
  Int stride, padding, dilation;
  bool adaptive;

  template <class To>
  PoolAxis<To> as() const {
    const auto to = [](Int n) { return static_cast<To>(n); };
    return {to(in), to(out), to(kernel), to(stride), to(padding), to(dilation), adaptive};
  }

  /// The positions of window o, of which only each `dilation`-th counts: [begin, end).
  WEFT_HD Int begin(Int o) const {
    if (adaptive) return o * in / out;
    const Int from = o * stride - padding;
    return from < 0 ? 0 : from;
  }
  WEFT_HD Int end(Int o) const {
    if (adaptive) return ((o + 1) * in + out - 1) / out;
    const Int to = o * stride - padding + kernel;
    return to > in ? in : to;
  }
  /// The number of positions of window o, with or without its padding.
  WEFT_HD Int size(Int o, bool with_padding) const {
    if (adaptive || !with_padding) return end(o) - begin(o);
    const Int from = o * stride - padding, to = from + kernel;
    return (to > in + padding ? in + padding : to) - from;
  }
  /// The windows that contain position i: [first, last).
  WEFT_HD Int first(Int i) const {
    if (adaptive) return i * out / in;
    return i + padding < kernel ? 0 : (i + padding - kernel) / stride + 1;
  }
  WEFT_HD Int last(Int i) const {
    const Int to = adaptive ? ((i + 1) * out + in - 1) / in : (i + padding) / stride + 1;
    return to > out ? out : to;
  }
};

inline PoolAxis<> pool_axis(const AvgPool2dParams& p, int axis, std::int64_t in, std::int64_t out) {
  if (p.adaptive) return {in, out, 0, 1, 0, 1, true};
  return {in, out, p.kernel[axis], p.stride[axis], p.padding[axis], 1, false};
}
inline PoolAxis<> pool_axis(const Pool2dParams& p, int axis, std::int64_t in, std::int64_t out) {
  if (p.adaptive) return {in, out, 0, 1, 0, 1, true};
  const std::int64_t kernel = p.dilation[axis] * (p.kernel[axis] - 1) + 1;
  return {in, out, kernel, p.stride[axis], p.padding[axis], p.dilation[axis], false};
}

}  // namespace weft
