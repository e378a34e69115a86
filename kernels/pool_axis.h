// The windows of a pooling along one axis.
#pragma once

#include <cstdint>

#include "weft/core/base/dtype.h"
#include "weft/kernels/pooling.h"

namespace weft {

/// The windows of an average pooling or of an adaptive pooling along one axis.
struct PoolAxis {
  std::int64_t in, out, kernel, stride, padding;
  bool adaptive;

  PoolAxis(const AvgPool2dParams& p, int axis, std::int64_t in_size, std::int64_t out_size)
      : in(in_size),
        out(out_size),
        kernel(p.kernel[axis]),
        stride(p.stride[axis]),
        padding(p.padding[axis]),
        adaptive(p.adaptive) {}

  static PoolAxis of_adaptive(std::int64_t in_size, std::int64_t out_size) {
    return {{.adaptive = true}, 0, in_size, out_size};
  }

  /// The positions of window o: [begin, end).
  WEFT_HD std::int64_t begin(std::int64_t o) const {
    if (adaptive) return o * in / out;
    const std::int64_t from = o * stride - padding;
    return from < 0 ? 0 : from;
  }
  WEFT_HD std::int64_t end(std::int64_t o) const {
    if (adaptive) return ((o + 1) * in + out - 1) / out;
    const std::int64_t to = o * stride - padding + kernel;
    return to > in ? in : to;
  }
  /// The number of positions of window o, with or without its padding.
  WEFT_HD std::int64_t size(std::int64_t o, bool with_padding) const {
    if (adaptive || !with_padding) return end(o) - begin(o);
    const std::int64_t from = o * stride - padding, to = from + kernel;
    return (to > in + padding ? in + padding : to) - from;
  }
  /// The windows that contain position i: [first, last).
  WEFT_HD std::int64_t first(std::int64_t i) const {
    if (adaptive) return i * out / in;
    return i + padding < kernel ? 0 : (i + padding - kernel) / stride + 1;
  }
  WEFT_HD std::int64_t last(std::int64_t i) const {
    const std::int64_t to = adaptive ? ((i + 1) * out + in - 1) / in : (i + padding) / stride + 1;
    return to > out ? out : to;
  }
};

}  // namespace weft
