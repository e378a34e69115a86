#include "weft/kernels/cuda/conv_problem.h"

#include <algorithm>
#include <limits>

#include "weft/kernels/plan/choices.h"

namespace weft::cuda {

CudnnProblem::CudnnProblem(const Conv2dArgs& args)
    : ConvProblem(args),
      weights_formats(formats_of(args.w)),
      big_aligned(is_aligned(big_of(args))),
      small_aligned(is_aligned(small_of(args))),
      weights_aligned(is_aligned(args.w)) {
  // The strides of the output may be anything, so they are not a part of the plan's key.
  if (!writes_big()) big_formats = formats_of(big_of(args));
  if (!writes_small()) small_formats = formats_of(small_of(args));
  fusable_bias = bias && writes_small() && is_aligned(args.bias) &&
                 (args.bias.shape[0] == 1 || args.bias.strides[0] == 1);
}

Shape CudnnProblem::library_small() const {
  Shape shape = small();
  if (!transposed || empty()) return shape;
  for (int i = 0; i < 2; ++i) shape[2 + i] += output_padding[i] / stride[i];
  return shape;
}

bool CudnnProblem::fits_int() const {
  constexpr std::int64_t most = std::numeric_limits<int>::max();
  if (numel(big()) > most || numel(library_small()) > most || numel(weights()) > most) return false;
  for (int i = 0; i < 2; ++i) {
    if (stride[i] > most || padding[i] > most || dilation[i] > most) {
      return false;
    }
  }
  return groups <= most;
}

std::size_t CudnnProblem::most_workspace() const {
  const std::int64_t elements = numel(big()) + numel(library_small()) + numel(weights());
  return std::max(std::size_t{1} << 30,
                  static_cast<std::size_t>(elements) * size_of(dtype) + 3 * kCudnnAlignment);
}

MemoryFormat CudnnProblem::preferred_format() const {
  if (!weights_formats.nchw) return MemoryFormat::nhwc;
  // If both images are given, the big one decides: it is more expensive to copy.
  Formats formats = writes_big() ? small_formats : big_formats;
  if (formats.both() && writes_weights()) formats = small_formats;
  if (formats.both()) formats = weights_formats;
  // If all have both, sequences, which are images of one row, stay row-major as Conv1d's weights.
  if (formats.both() && big()[2] == 1) return MemoryFormat::nchw;
  return formats.nhwc ? MemoryFormat::nhwc : MemoryFormat::nchw;
}

CudnnProblem::Key CudnnProblem::key(int device, std::int64_t rules, bool tf32) const {
  return {static_cast<std::int64_t>(pass),
          static_cast<std::int64_t>(dtype),
          transposed,
          bias,
          fusable_bias,
          images,
          c,
          h,
          w,
          k,
          ho,
          wo,
          c / groups,
          r,
          s,
          stride[0],
          stride[1],
          padding[0],
          padding[1],
          dilation[0],
          dilation[1],
          groups,
          big_formats.nchw,
          big_formats.nhwc,
          small_formats.nchw,
          small_formats.nhwc,
          weights_formats.nchw,
          weights_formats.nhwc,
          big_aligned,
          small_aligned,
          weights_aligned,
          device,
          rules,
          tf32};
}

std::vector<std::int64_t> CudnnProblem::family(const Key& key) {
  std::vector<std::int64_t> words(key.begin(), key.end());
  // images, height and width of both images
  for (const int i : {5, 7, 8, 10, 11}) words[std::size_t(i)] = size_class(words[std::size_t(i)]);
  return words;
}

}  // namespace weft::cuda
