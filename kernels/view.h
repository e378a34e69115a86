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

/// The most pixels that an image may have, together with its padding, and the largest stride,
/// padding, dilation and window side: the kernels of images, oneDNN's and cuDNN's among them, count
/// pixels in 32 bits. So all sums and products of two of these numbers fit in 64.
inline constexpr std::int64_t kMaxPixels = (std::int64_t{1} << 31) - 1;

}  // namespace weft
