// A convolution in the terms of cuDNN. It includes no CUDA header, so it is tested without a GPU.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "weft/kernels/plan/conv_problem.h"

namespace weft::cuda {

/// The memory formats that a view is in (is_format).
struct Formats {
  bool nchw = false;
  bool nhwc = false;
  bool has(MemoryFormat format) const { return format == MemoryFormat::nchw ? nchw : nhwc; }
  bool both() const { return nchw && nhwc; }
};
inline Formats formats_of(const View& view) {
  return {is_format(view, MemoryFormat::nchw), is_format(view, MemoryFormat::nhwc)};
}

/// cuDNN's fast kernels read 16 bytes at a time and fault on less aligned addresses. A view without
/// memory yet counts as aligned, because new memory is.
inline constexpr std::uintptr_t kCudnnAlignment = 16;
inline bool is_aligned(const View& view) {
  return reinterpret_cast<std::uintptr_t>(view.data) % kCudnnAlignment == 0;
}

/// What cuDNN needs to know beyond the problem.
struct CudnnProblem : ConvProblem {
  /// Whether cuDNN can add the bias in the same call. Only its forward pass can, and only a dense
  /// and aligned bias.
  bool fusable_bias = false;
  Formats big_formats, small_formats;  // only for images that the pass reads
  Formats weights_formats;             // also of weights that it writes
  bool big_aligned, small_aligned, weights_aligned;

  explicit CudnnProblem(const Conv2dArgs& args);

  /// The shape of the small image for cuDNN, which derives it from the big image. It is larger than
  /// small() in a transposed convolution whose output padding is a stride or more (and less than
  /// the dilation): then rows and columns of zeros are appended to the small image.
  Shape library_small() const;
  bool pads_small() const { return !(library_small() == small()); }
  /// Whether all sizes and offsets fit in an int, which cuDNN uses.
  bool fits_int() const;
  /// The most bytes that a plan of cuDNN's may use: a gibibyte, since the fastest one rarely uses
  /// more and the memory is for tensors; but all that the three tensors take, aligned, where that
  /// is more: the engines for one format copy them from the other one, and of some problems there
  /// are no others.
  std::size_t most_workspace() const;
  /// nhwc if the weights are in it alone, as in PyTorch. Else the format of the image that the pass
  /// reads; if it reads both, the big one decides, and the small one if the big one is in both
  /// formats. If still both are possible, that of the weights, at last nhwc, with which other
  /// layers are faster.
  MemoryFormat preferred_format() const;
  /// The key of the plan in the cache.
  using Key = std::array<std::int64_t, 34>;
  Key key(int device, std::int64_t rules, bool tf32) const;
  /// The family of a key (ChoiceProblem::family).
  static std::vector<std::int64_t> family(const Key& key);
};

}  // namespace weft::cuda
