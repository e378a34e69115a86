// A tensor as kernels see it: an address, a dtype, a shape and strides.
#pragma once

#include <cstdint>

#include "weft/core/base/dtype.h"
#include "weft/core/base/shape.h"

namespace weft {

/// Does not own the memory. Strides count elements and may be 0 (broadcast). data points to the
/// element with all indices 0.
struct View {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;
  Strides strides;

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  std::int64_t numel() const { return weft::numel(shape); }
  explicit operator bool() const { return data != nullptr; }
};

/// The order of the dimensions of a dense batch of images in memory: N,C,H,W or N,H,W,C.
enum class MemoryFormat : std::uint8_t { nchw, nhwc };

inline Strides format_strides(const Shape& shape, MemoryFormat format) {
  return format == MemoryFormat::nchw ? contiguous_strides(shape) : channels_last_strides(shape);
}

/// Whether `view` is dense in `format`. With one channel or one pixel, it may be in both. One
/// without strides, which are not known yet, is in none.
inline bool is_format(const View& view, MemoryFormat format) {
  if (view.strides.size() != view.shape.size()) return false;
  const Strides dense = format_strides(view.shape, format);
  for (int d = 0; d < view.shape.size(); ++d) {
    if (view.shape[d] != 1 && view.strides[d] != dense[d]) return false;
  }
  return true;
}

/// The largest number of pixels of an image with its padding, and the largest stride, padding,
/// dilation and side of a window: the kernels for images, also those of oneDNN and cuDNN, count
/// pixels in 32 bits. So all sums and products of two of these numbers fit in 64 bits.
inline constexpr std::int64_t kMaxPixels = (std::int64_t{1} << 31) - 1;

}  // namespace weft
