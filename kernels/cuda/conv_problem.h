// A convolution in the terms of cuDNN. It includes no CUDA header, so it is tested without a GPU.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "weft/kernels/conv.h"

namespace weft::cuda {

/// The memory formats that a view is in. With one channel or one pixel, it is in both.
struct Formats {
  bool nchw = false;
  bool nhwc = false;
  bool has(MemoryFormat format) const { return format == MemoryFormat::nchw ? nchw : nhwc; }
};
Formats formats_of(const View& view);

/// cuDNN's fast kernels read 16 bytes at a time and fault on less aligned addresses. A view without
/// memory yet counts as aligned, because new memory is.
inline constexpr std::uintptr_t kConvAlignment = 16;
inline bool is_aligned(const View& view) {
  return reinterpret_cast<std::uintptr_t>(view.data) % kConvAlignment == 0;
}

Strides format_strides(const Shape& shape, MemoryFormat format);

/// cuDNN convolves a big image, [N,C,H,W], into a small one, [N,K,Ho,Wo], through weights
/// [K,C/groups,R,S]. A transposed convolution is the same with the roles changed: its x is the
/// small image, so its forward pass is cuDNN's backward_data, and the other way round. Its weights
/// [C,K/groups,R,S] already have the small image's channels first.
struct ConvProblem {
  ConvPass pass = ConvPass::forward;  // cuDNN's
  DType dtype = DType::f32;
  bool transposed = false;
  bool bias = false;  // a bias is to be added, or its gradient to be summed
  /// Whether cuDNN can add the bias in the same call. Only its forward pass can, and only a dense
  /// and aligned bias.
  bool fusable_bias = false;
  Conv2dParams params;
  Shape big, small, weights;
  /// The shape of the small image for cuDNN, which derives it from the big image. It is larger than
  /// `small` in a transposed convolution whose output padding is a stride or more (and less than
  /// the dilation): then rows and columns of zeros are appended to the small image.
  Shape library_small;
  Formats big_formats, small_formats;  // only of images that the pass reads
  bool big_aligned = true, small_aligned = true, weights_aligned = true;

  explicit ConvProblem(const Conv2dArgs& args);

  bool reads_big() const { return pass != ConvPass::backward_data; }
  bool reads_small() const { return pass != ConvPass::forward; }
  bool pads_small() const { return !(library_small == small); }
  /// Whether an image or the weights have no elements.
  bool empty() const { return numel(big) == 0 || numel(small) == 0 || numel(weights) == 0; }
  /// Whether all sizes and offsets fit in an int, in which cuDNN counts.
  bool fits_int() const;
  /// The format of the image that the pass reads. If it reads both, the big one decides, and the
  /// small one if the big one is in both formats. nchw if still both are possible.
  MemoryFormat preferred_format() const;
  /// Whether weights [K,C,R,S] and [K,R,S,C] have the same order in memory.
  bool weights_in_any_format() const {
    return weights[1] == 1 || (weights[2] == 1 && weights[3] == 1);
  }

  static const View& big_of(const Conv2dArgs& a) { return a.params.transposed ? a.y : a.x; }
  static const View& small_of(const Conv2dArgs& a) { return a.params.transposed ? a.x : a.y; }

  /// The key of the plan in the cache.
  std::array<std::int64_t, 32> key(int device, std::int64_t rules, bool tf32) const;
  /// The family of a key (ChoiceProblem::family).
  static std::vector<std::int64_t> family(const std::array<std::int64_t, 32>& key);
};

}  // namespace weft::cuda
