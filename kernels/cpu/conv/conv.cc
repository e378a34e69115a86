// The kernel table's convolutions: the problem in normal form, the plan cache, and the choice.
#include "weft/kernels/cpu/conv/conv.h"

#include <algorithm>

#include "weft/core/base/error.h"
#include "weft/core/base/simd_level.h"
#include "weft/core/runtime/parallel.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/kernels/backend.h"
#include "weft/kernels/cpu/activation.h"
#include "weft/kernels/cpu/copy.h"
#include "weft/kernels/cpu/dnnl/library.h"

namespace weft::cpu {

MemoryFormat wanted_format(const Conv2dArgs& args) {
  const View& output = args.pass == ConvPass::backward_data ? args.x : args.y;
  return is_format(output, MemoryFormat::nchw) ? MemoryFormat::nchw : MemoryFormat::nhwc;
}

std::vector<Candidate<ConvPlan>> conv_candidates(const Conv2dArgs& args) {
  std::vector<Candidate<ConvPlan>> candidates;
  const ConvProblem p(args);
  // Most candidates copy images with their padding, and oneDNN computes positions in 32 bits: both
  // fail for padding that is far larger than the image, and for the longest sides.
  const auto is_usual = [](std::int64_t side, std::int64_t padding) {
    return side < (1 << 28) && padding <= std::max<std::int64_t>(side, 256);
  };
  if (!is_usual(p.h, p.padding[0]) || !is_usual(p.w, p.padding[1])) {
    add_gemm_conv(args, candidates);
    return candidates;
  }
  // oneDNN's kernels for AVX-512 load a vector of weights for up to 28 pixels, the direct tiles for
  // 8. With many taps this is worth more than the layout costs.
  const bool large_window = !p.writes_weights() && p.r * p.s >= 25 && p.c % 16 == 0 &&
                            p.k % 16 == 0 && simd_level() == SimdLevel::avx512;
  add_single_channel_conv(args, candidates);
  if (!large_window) add_direct_conv(args, candidates);
  add_depthwise_conv(args, candidates);
  if (args.x.numel() > 0 && args.y.numel() > 0) add_dnnl_conv(args, candidates);
  if (large_window) add_direct_conv(args, candidates);
  add_gemm_conv(args, candidates);
  add_winograd_conv(args, candidates);
  return candidates;
}

namespace {

struct ConvTrial {
  Conv2dArgs args;
  TimingBuffer x, w, y, bias;

  explicit ConvTrial(const Conv2dArgs& from)
      : args(from),
        x(bytes_of(from.x), from.x.dtype),
        w(bytes_of(from.w), from.x.dtype),
        y(bytes_of(from.y), from.x.dtype),
        bias(bytes_of(from.bias), from.x.dtype) {
    args.x.data = x.data();
    args.w.data = w.data();
    args.y.data = y.data();
    if (from.bias) args.bias.data = bias.data();
    args.then = Activation::none;  // so that it does not change the choice
  }
  static std::size_t bytes_of(const View& view) {
    return view.shape.empty() ? 0 : std::size_t(view.numel()) * size_of(view.dtype);
  }
  static std::size_t bytes(const Conv2dArgs& args) {
    return bytes_of(args.x) + bytes_of(args.w) + bytes_of(args.y);
  }
  void operator()(const ConvPlan& plan, void* workspace) {
    View* output = args.pass == ConvPass::forward         ? &args.y
                   : args.pass == ConvPass::backward_data ? &args.x
                                                          : nullptr;
    if (output) output->strides = format_strides(output->shape, plan.output_format);
    plan.run(args, workspace);
  }
};

using ConvPlans = Plans<ConvTrial, ConvPlan, Conv2dArgs>;

double multiply_adds(const Conv2dArgs& args) {
  const Shape& w = args.w.shape;
  return static_cast<double>(small_of(args).numel()) * static_cast<double>(w[1] * w[2] * w[3]);
}

/// The weights as a row-major view of the memory at `data`.
View row_major_weights(const Conv2dArgs& args, void* data) {
  View w = args.w;
  w.data = data;
  w.strides = contiguous_strides(w.shape);
  return w;
}

bool has_row_major_weights(const Conv2dArgs& args) { return is_format(args.w, MemoryFormat::nchw); }

/// The plan for row-major weights, with a copy of those that are not.
///
///   workspace: [row-major weights][the plan's own]
class ReorderedWeights final : public ConvPlan {
 public:
  ReorderedWeights(std::unique_ptr<ConvPlan> plan, const Conv2dArgs& args)
      : plan_(std::move(plan)), weights_bytes_((ConvTrial::bytes_of(args.w) + 63) / 64 * 64) {
    name = plan_->name;
    activates = plan_->activates;
    output_format = plan_->output_format;
    workspace_bytes = weights_bytes_ + plan_->workspace_bytes;
  }
  void run(const Conv2dArgs& args, void* workspace) const override {
    const Stream host{};
    Conv2dArgs own = args;
    own.w = row_major_weights(args, workspace);
    const bool writes_weights = args.pass == ConvPass::backward_weights;
    if (!writes_weights) copy(host, args.w, own.w);
    plan_->run(own, static_cast<char*>(workspace) + weights_bytes_);
    if (writes_weights) copy(host, own.w, args.w);
  }

 private:
  std::unique_ptr<ConvPlan> plan_;
  std::size_t weights_bytes_;
};

PlanKey<18> key_of(const Conv2dArgs& args, std::int64_t rules) {
  const ConvProblem p(args);
  const auto format = [](const View& view) {
    return flags({is_format(view, MemoryFormat::nchw), is_format(view, MemoryFormat::nhwc)});
  };
  const std::int64_t formats = format(args.x) << 2 | format(args.y);
  const std::int64_t rest = flags({!has_row_major_weights(args), dnnl_ended(),
                                   thread_state().allow_tf32_conv, p.transposed, p.bias});
  const std::int64_t options = rest << 4 | formats;
  return {rules << 32 | options << 16 | std::int64_t(args.pass) << 8 | std::int64_t(p.dtype),
          num_threads(),
          p.images,
          p.groups,
          p.c,
          p.h,
          p.w,
          p.k,
          p.ho,
          p.wo,
          p.r,
          p.s,
          p.stride[0],
          p.stride[1],
          p.padding[0],
          p.padding[1],
          p.dilation[0],
          p.dilation[1]};
}

std::vector<std::int64_t> family_of(const ConvProblem& p, const PlanKey<18>& key) {
  return {key[0],          key[1],      size_class(p.images), p.groups,     p.c,
          size_class(p.h), p.k,         size_class(p.w),      p.r,          p.s,
          p.stride[0],     p.stride[1], p.padding[0],         p.padding[1], p.dilation[0],
          p.dilation[1]};
}

PlanRef<Conv2dPlan> plan_conv(const Conv2dArgs& args) {
  static auto& cache = *new PlanCache<ConvPlan, 18>;
  const Scoped team(&ThreadState::num_threads, team_for(multiply_adds(args)));
  return cache.get(key_of(args, choice_rules()), [&] { return choose_conv(args); });
}

void run_conv(const Stream&, const Conv2dPlan& of_cache, const Conv2dArgs& args, void* workspace) {
  const auto& plan = static_cast<const ConvPlan&>(of_cache);
  const Scoped team(&ThreadState::num_threads, plan.team);
  plan.run(args, workspace);
  if (!plan.activates) activate(args.then, args.y);
}

}  // namespace

std::unique_ptr<ConvPlan> choose_conv(const Conv2dArgs& args) {
  if (!has_row_major_weights(args)) {
    Conv2dArgs row_major = args;
    row_major.w = row_major_weights(args, args.w.data);
    return std::make_unique<ReorderedWeights>(choose_conv(row_major), args);
  }
  const ConvProblem p(args);
  const auto key = key_of(args, 0);
  return ConvPlans(conv_candidates(args), args).choose("conv2d", p.text(), key, family_of(p, key));
}

std::vector<Measured> measure_conv(const Conv2dArgs& args) {
  std::vector<Measured> report;
  ConvPlans(conv_candidates(args), args).time(report, /*whole=*/true);
  return report;
}

Conv2dKernels conv_kernels() { return {plan_conv, run_conv}; }

}  // namespace weft::cpu
