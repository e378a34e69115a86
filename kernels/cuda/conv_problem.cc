#include "weft/kernels/cuda/conv_problem.h"

#include <limits>

#include "weft/kernels/plan/choices.h"

namespace weft::cuda {
namespace {

bool is_dense(const View& view, MemoryFormat format) {
  if (view.strides.size() != view.shape.size()) return false;
  const Strides dense = format_strides(view.shape, format);
  for (int d = 0; d < view.shape.size(); ++d) {
    if (view.shape[d] != 1 && view.strides[d] != dense[d]) return false;
  }
  return true;
}

ConvPass library_pass(const Conv2dArgs& args) {
  if (!args.params.transposed || args.pass == ConvPass::backward_weights) return args.pass;
  return args.pass == ConvPass::forward ? ConvPass::backward_data : ConvPass::forward;
}

}  // namespace

Strides format_strides(const Shape& shape, MemoryFormat format) {
  return format == MemoryFormat::nchw ? contiguous_strides(shape) : channels_last_strides(shape);
}

Formats formats_of(const View& view) {
  return {is_dense(view, MemoryFormat::nchw), is_dense(view, MemoryFormat::nhwc)};
}

ConvProblem::ConvProblem(const Conv2dArgs& args)
    : pass(library_pass(args)),
      dtype(args.w.dtype),
      transposed(args.params.transposed),
      bias(args.pass != ConvPass::backward_data && static_cast<bool>(args.bias)),
      params(args.params),
      big(big_of(args).shape),
      small(small_of(args).shape),
      weights(args.w.shape),
      library_small(small),
      big_aligned(is_aligned(big_of(args))),
      small_aligned(is_aligned(small_of(args))),
      weights_aligned(is_aligned(args.w)) {
  // The strides of what the pass writes are free, and must not tell plans apart.
  if (reads_big()) big_formats = formats_of(big_of(args));
  if (reads_small()) small_formats = formats_of(small_of(args));
  fusable_bias = bias && pass == ConvPass::forward && is_aligned(args.bias) &&
                 (args.bias.shape[0] == 1 || args.bias.strides[0] == 1);
  if (!transposed || empty()) return;
  for (int i = 0; i < 2; ++i) library_small[2 + i] += params.output_padding[i] / params.stride[i];
}

bool ConvProblem::fits_int() const {
  constexpr std::int64_t most = std::numeric_limits<int>::max();
  if (numel(big) > most || numel(library_small) > most || numel(weights) > most) return false;
  for (int i = 0; i < 2; ++i) {
    if (params.stride[i] > most || params.padding[i] > most || params.dilation[i] > most) {
      return false;
    }
  }
  return params.groups <= most;
}

MemoryFormat ConvProblem::preferred_format() const {
  // With both given, the big image decides: it is the more costly one to rearrange.
  const Formats formats = reads_big() ? big_formats : small_formats;
  if (formats.nchw && formats.nhwc && pass == ConvPass::backward_weights) {
    return small_formats.nchw ? MemoryFormat::nchw : MemoryFormat::nhwc;
  }
  return formats.nchw ? MemoryFormat::nchw : MemoryFormat::nhwc;
}

std::array<std::int64_t, 32> ConvProblem::key(int device, std::int64_t rules, bool tf32) const {
  return {static_cast<std::int64_t>(pass),
          static_cast<std::int64_t>(dtype),
          transposed,
          bias,
          fusable_bias,
          big[0],
          big[1],
          big[2],
          big[3],
          small[1],
          small[2],
          small[3],
          weights[1],
          weights[2],
          weights[3],
          params.stride[0],
          params.stride[1],
          params.padding[0],
          params.padding[1],
          params.dilation[0],
          params.dilation[1],
          params.groups,
          big_formats.nchw,
          big_formats.nhwc,
          small_formats.nchw,
          small_formats.nhwc,
          big_aligned,
          small_aligned,
          weights_aligned,
          device,
          rules,
          tf32};
}

std::vector<std::int64_t> ConvProblem::family(const std::array<std::int64_t, 32>& key) {
  std::vector<std::int64_t> words(key.begin(), key.end());
  // images, height and width of both images
  for (const int i : {5, 7, 8, 10, 11}) words[std::size_t(i)] = size_class(words[std::size_t(i)]);
  return words;
}

}  // namespace weft::cuda
