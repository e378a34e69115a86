// The entries: problems in normal form, the plan caches, and the choice.
#include <algorithm>
#include <new>

#include "weft/core/base/device.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/parallel.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/kernels/cpu/heavy_internal.h"
#include "weft/kernels/cpu/simd.h"
#include "weft/kernels/cpu/timing.h"
#include "weft/kernels/plan/plan_cache.h"

namespace weft::cpu {

MatmulProblem::MatmulProblem(const MatmulArgs& args)
    : dtype(args.a.dtype),
      y_dtype(args.y.dtype),
      batch(args.y.shape[0]),
      m(args.y.shape[1]),
      n(args.y.shape[2]),
      k(args.a.shape[2]),
      a_batch(args.a.strides[0]),
      a_m(args.a.strides[1]),
      a_k(args.a.strides[2]),
      b_batch(args.b.strides[0]),
      b_k(args.b.strides[1]),
      b_n(args.b.strides[2]),
      bias(bool(args.bias)),
      accumulate(args.accumulate) {
  // The stride of a dimension of length 1 says nothing; one value for all makes them one problem.
  if (m == 1) a_m = a_k == 1 ? k : 1;
  if (n == 1) b_n = b_k == 1 ? k : 1;
  if (k == 1) {
    a_k = 1;
    b_k = b_n == 1 ? n : 1;
  }
  // One b for all, and a's matrices stacked: one tall product.
  if (batch > 1 && b_batch == 0 && m == 1 && a_k == 1 && a_batch >= k) a_m = a_batch;
  if (batch > 1 && b_batch == 0 && a_batch == m * a_m) {
    m *= batch;
    batch = 1;
  }
  if (batch == 1) a_batch = b_batch = 0;
}

std::string MatmulProblem::text() const {
  return detail::concat("a [", batch, ",", m, ",", k, "] strides [", a_batch, ",", a_m, ",", a_k,
                        "], b [", batch, ",", k, ",", n, "] strides [", b_batch, ",", b_k, ",", b_n,
                        "], ", to_string(dtype),
                        y_dtype == dtype ? "" : detail::concat(" to ", to_string(y_dtype)));
}

ConvProblem::ConvProblem(const Conv2dArgs& args)
    : dtype(args.y.dtype),
      transposed(args.params.transposed),
      images(args.x.shape[0]),
      groups(args.params.groups),
      r(args.w.shape[2]),
      s(args.w.shape[3]),
      stride(args.params.stride),
      padding(args.params.padding),
      dilation(args.params.dilation),
      bias(args.pass != ConvPass::backward_data && bool(args.bias)) {
  switch (args.pass) {
    case ConvPass::forward: kind = transposed ? Kind::scatter : Kind::gather; break;
    case ConvPass::backward_data: kind = transposed ? Kind::gather : Kind::scatter; break;
    case ConvPass::backward_weights: kind = Kind::weights; break;
  }
  const Shape& of_big = big(args).shape;
  const Shape& of_small = small(args).shape;
  c = of_big[1];
  h = of_big[2];
  w = of_big[3];
  k = of_small[1];
  ho = of_small[2];
  wo = of_small[3];
}

std::string ConvProblem::text() const {
  static constexpr const char* kKinds[] = {"gather", "scatter", "weights"};
  return detail::concat(kKinds[int(kind)], transposed ? " (transposed)" : "", ": big [", images,
                        ",", c, ",", h, ",", w, "], small [", images, ",", k, ",", ho, ",", wo,
                        "], kernel [", r, ",", s, "], stride [", stride[0], ",", stride[1],
                        "], padding [", padding[0], ",", padding[1], "], dilation [", dilation[0],
                        ",", dilation[1], "], groups ", groups, ", ", to_string(dtype));
}

Strides format_strides(const Shape& shape, MemoryFormat format) {
  return format == MemoryFormat::nchw ? contiguous_strides(shape) : channels_last_strides(shape);
}

bool is_format(const View& view, MemoryFormat format) {
  const Strides dense = format_strides(view.shape, format);
  for (int d = 0; d < 4; ++d) {
    if (view.shape[d] != 1 && view.strides[d] != dense[d]) return false;
  }
  return true;
}

std::vector<Candidate<MatmulPlan>> matmul_candidates(const MatmulArgs& args) {
  std::vector<Candidate<MatmulPlan>> candidates;
  const MatmulProblem p(args);
  // oneDNN first, but for few outputs of a long sum, which it does not share out.
  const bool long_sum = p.m * p.n <= 64 * 64 && p.k >= 4096;
  if (long_sum) add_plain_matmul(args, candidates);
  if (p.k > 0) add_dnnl_matmul(args, candidates);
  if (!long_sum) add_plain_matmul(args, candidates);
  return candidates;
}

MemoryFormat wanted_format(const Conv2dArgs& args) {
  const View& output = args.pass == ConvPass::backward_data ? args.x : args.y;
  return is_format(output, MemoryFormat::nchw) ? MemoryFormat::nchw : MemoryFormat::nhwc;
}

std::vector<Candidate<ConvPlan>> conv_candidates(const Conv2dArgs& args) {
  std::vector<Candidate<ConvPlan>> candidates;
  const ConvProblem p(args);
  // Most candidates copy images together with their padding, and oneDNN adds places in 32 bits:
  // neither is for a padding far larger than the image, nor for the longest sides.
  const auto is_usual = [](std::int64_t side, std::int64_t padding) {
    return side < (1 << 28) && padding <= std::max<std::int64_t>(side, 256);
  };
  if (!is_usual(p.h, p.padding[0]) || !is_usual(p.w, p.padding[1])) {
    add_plain_conv(args, candidates);
    return candidates;
  }
  add_single_channel_conv(args, candidates);
  add_direct_conv(args, candidates);
  if (args.x.numel() > 0 && args.y.numel() > 0) add_dnnl_conv(args, candidates);
  add_plain_conv(args, candidates);
  add_winograd_conv(args, candidates);
  return candidates;
}

namespace {

std::size_t span_bytes(const View& view) {
  if (view.shape.empty() || view.numel() == 0) return 0;
  std::int64_t last = 0;
  for (int d = 0; d < view.shape.size(); ++d) last += (view.shape[d] - 1) * view.strides[d];
  return std::size_t(last + 1) * size_of(view.dtype);
}

// The caller's arguments over memory of their own.
struct MatmulTrial {
  MatmulArgs args;
  TimingBuffer a, b, y, bias;

  explicit MatmulTrial(const MatmulArgs& from)
      : args(from),
        a(span_bytes(from.a), from.a.dtype),
        b(span_bytes(from.b), from.b.dtype),
        y(span_bytes(from.y), from.y.dtype),
        bias(span_bytes(from.bias), from.y.dtype) {
    args.a.data = a.data();
    args.b.data = b.data();
    args.y.data = y.data();
    if (from.bias) args.bias.data = bias.data();
  }
  static std::size_t bytes(const MatmulArgs& args) {
    return span_bytes(args.a) + span_bytes(args.b) + span_bytes(args.y);
  }
  void operator()(const MatmulPlan& plan, void* workspace) { plan.run(args, workspace); }
};

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

double multiply_adds(const MatmulArgs& args) {
  return static_cast<double>(args.y.numel()) * static_cast<double>(args.a.shape[2]);
}

double multiply_adds(const Conv2dArgs& args) {
  const Shape& w = args.w.shape;
  return static_cast<double>(ConvProblem::small(args).numel()) *
         static_cast<double>(w[1] * w[2] * w[3]);
}

// By the work alone, so that it is the same in every run. Below it a team gains no more than some
// microseconds, and on a busy machine each member that must wait for a core costs milliseconds.
int team_for(double multiply_adds) {
  constexpr double kWorthATeam = 1 << 20;
  return multiply_adds < kWorthATeam ? 1 : num_threads();
}

std::int64_t flags(std::initializer_list<bool> bits) {
  std::int64_t word = 0;
  for (const bool bit : bits) word = word << 1 | std::int64_t(bit);
  return word;
}

PlanKey<12> key_of(const MatmulArgs& args, std::int64_t rules) {
  const MatmulProblem p(args);
  const std::int64_t options = flags({dnnl_ended(), p.bias, p.accumulate});
  return {rules << 32 | options << 16 | std::int64_t(p.y_dtype) << 8 | std::int64_t(p.dtype),
          num_threads(),
          p.batch,
          p.m,
          p.n,
          p.k,
          p.a_batch,
          p.a_m,
          p.a_k,
          p.b_batch,
          p.b_k,
          p.b_n};
}

PlanKey<18> key_of(const Conv2dArgs& args, std::int64_t rules) {
  const ConvProblem p(args);
  const auto format = [](const View& view) {
    return flags({is_format(view, MemoryFormat::nchw), is_format(view, MemoryFormat::nhwc)});
  };
  const std::int64_t formats = format(args.x) << 2 | format(args.y);
  const std::int64_t options =
      flags({dnnl_ended(), thread_state().allow_tf32_conv, p.transposed, p.bias}) << 4 | formats;
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

std::vector<std::int64_t> family_of(const MatmulProblem& p, const PlanKey<12>& key) {
  const std::int64_t strides = flags({p.a_batch == 0, p.a_k == 1, p.b_batch == 0, p.b_n == 1});
  return {key[0],          key[1], size_class(p.batch), size_class(p.m), size_class(p.n),
          size_class(p.k), strides};
}

std::vector<std::int64_t> family_of(const ConvProblem& p, const PlanKey<18>& key) {
  return {key[0],          key[1],      size_class(p.images), p.groups,     p.c,
          size_class(p.h), p.k,         size_class(p.w),      p.r,          p.s,
          p.stride[0],     p.stride[1], p.padding[0],         p.padding[1], p.dilation[0],
          p.dilation[1]};
}

std::string machine() {
  return detail::concat(cpu_model(), ", ", core_count(), " cores, ", to_string(simd_level()), ", ",
                        dnnl_name());
}

template <class Problem, class P, class Args>
ChoiceProblem problem_of(const char* op, const Args& args,
                         const std::vector<Candidate<P>>& candidates) {
  const auto words = key_of(args, 0);
  const Problem p(args);
  ChoiceProblem problem{op,
                        detail::concat(p.text(), ", team of ", num_threads()),
                        machine(),
                        {words.begin(), words.end()},
                        family_of(p, words),
                        {}};
  for (const auto& candidate : candidates) problem.candidates.push_back(candidate.name);
  return problem;
}

// The one of that name, or null.
template <class P>
std::unique_ptr<P> plan_named(const std::vector<Candidate<P>>& candidates,
                              const std::string& name) {
  for (const auto& candidate : candidates) {
    if (candidate.name == name) return first_plan<P>({candidate});
  }
  return nullptr;
}

template <class Trial, class P, class Args>
std::unique_ptr<P> choose(const std::vector<Candidate<P>>& candidates, const Args& args,
                          const ChoiceProblem& problem) {
  std::unique_ptr<P> plan;
  std::string why = "rule";
  std::vector<Measured> measured;
  if (candidates.size() <= 1) {
    why = "only candidate";
  } else if (thread_state().deterministic) {
    why = "deterministic rule";
  } else if (Trial::bytes(args) > kMostTimingBytes) {
    why = detail::concat("too big to time: ", Trial::bytes(args) >> 20, " MiB");
  } else {
    const auto take = [&](const Measured& known, std::string_view reason) {
      plan = plan_named(candidates, known.name);
      if (!plan) return false;
      if (known.ms > 0) measured = {known};
      why = reason;
      return true;
    };
    recall_or_time(problem, take, [&] {
      why = "timed";
      try {
        const TimingTurn turn(num_threads());
        plan = fastest_plan(candidates, Trial(args), measured, Trials::short_ones);
      } catch (const std::bad_alloc&) {
        // The fixed rule needs no room to try things out.
        why = "no memory to time it";
      }
      for (const Measured& m : measured) {
        if (plan && m.name == plan->name) remember_choice(problem, m);
      }
    });
  }
  if (!plan) plan = first_plan(candidates);
  WEFT_CHECK(plan, Internal, problem.op, "no kernel takes these shapes");
  log_choice(problem, plan->name, why, measured);
  return plan;
}

PlanRef<Plan> plan_matmul(const MatmulArgs& args) {
  // Never destroyed: a detached thread may still compute while the process exits.
  static auto& cache = *new PlanCache<MatmulPlan, 12>;
  const Scoped team(&ThreadState::num_threads, team_for(multiply_adds(args)));
  return cache.get(key_of(args, choice_rules()), [&] { return choose_matmul(args); });
}

void run_matmul(const Stream&, const Plan& of_cache, const MatmulArgs& args, void* workspace) {
  const auto& plan = static_cast<const MatmulPlan&>(of_cache);
  const Scoped team(&ThreadState::num_threads, plan.team);
  plan.run(args, workspace);
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
}

}  // namespace

std::unique_ptr<MatmulPlan> choose_matmul(const MatmulArgs& args) {
  const auto candidates = matmul_candidates(args);
  const auto problem = problem_of<MatmulProblem>("matmul", args, candidates);
  return choose<MatmulTrial>(candidates, args, problem);
}

std::unique_ptr<ConvPlan> choose_conv(const Conv2dArgs& args) {
  const auto candidates = conv_candidates(args);
  const auto problem = problem_of<ConvProblem>("conv2d", args, candidates);
  return choose<ConvTrial>(candidates, args, problem);
}

std::vector<Measured> measure_matmul(const MatmulArgs& args) {
  std::vector<Measured> report;
  fastest_plan(matmul_candidates(args), MatmulTrial(args), report, Trials::whole);
  return report;
}

std::vector<Measured> measure_conv(const Conv2dArgs& args) {
  std::vector<Measured> report;
  fastest_plan(conv_candidates(args), ConvTrial(args), report, Trials::whole);
  return report;
}

}  // namespace weft::cpu

namespace weft {

MatmulKernels cpu_matmul_kernels() { return {cpu::plan_matmul, cpu::run_matmul}; }
Conv2dKernels cpu_conv2d_kernels() { return {cpu::plan_conv, cpu::run_conv}; }

}  // namespace weft
