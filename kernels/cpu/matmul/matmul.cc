// The kernel table's matrix products: the problem in normal form, the plan cache, and the choice.
#include "weft/kernels/cpu/matmul/matmul.h"

#include "weft/core/base/error.h"
#include "weft/core/runtime/parallel.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/kernels/backend.h"
#include "weft/kernels/cpu/activation.h"
#include "weft/kernels/cpu/dnnl/library.h"

namespace weft::cpu {

MatmulProblem folded(const MatmulArgs& args) {
  MatmulProblem p(args);
  // The stride of a dimension of length 1 has no meaning; a fixed value makes these the same
  // problem.
  if (p.m == 1) p.a_m = p.a_k == 1 ? p.k : 1;
  if (p.n == 1) p.b_n = p.b_k == 1 ? p.k : 1;
  if (p.k == 1) {
    p.a_k = 1;
    p.b_k = p.b_n == 1 ? p.n : 1;
  }
  // One b for all, and matrices of a that follow each other: this is one tall product.
  const bool one_b = p.batch > 1 && p.b_batch == 0;
  if (one_b && p.m == 1 && p.a_k == 1 && p.a_batch >= p.k) p.a_m = p.a_batch;
  if (one_b && p.a_batch == p.m * p.a_m) {
    p.m *= p.batch;
    p.batch = 1;
  }
  if (p.batch == 1) p.a_batch = p.b_batch = 0;
  return p;
}

std::vector<Candidate<MatmulPlan>> matmul_candidates(const MatmulArgs& args) {
  std::vector<Candidate<MatmulPlan>> candidates;
  const MatmulProblem p = folded(args);
  // oneDNN first, except for few outputs of a long sum, which it does not divide among the team.
  const bool long_sum = p.m * p.n <= 64 * 64 && p.k >= 4096;
  if (long_sum) add_own_matmul(args, candidates);
  if (p.k > 0) add_dnnl_matmul(args, candidates);
  if (!long_sum) add_own_matmul(args, candidates);
  return candidates;
}

namespace {

std::size_t span_bytes(const View& view) {
  if (view.shape.empty() || view.numel() == 0) return 0;
  std::int64_t last = 0;
  for (int d = 0; d < view.shape.size(); ++d) last += (view.shape[d] - 1) * view.strides[d];
  return std::size_t(last + 1) * size_of(view.dtype);
}

// The caller's arguments with memory for the trial.
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
    args.then = Activation::none;  // so that it does not change the choice
  }
  static std::size_t bytes(const MatmulArgs& args) {
    return span_bytes(args.a) + span_bytes(args.b) + span_bytes(args.y);
  }
  void operator()(const MatmulPlan& plan, void* workspace) { plan.run(args, workspace); }
};

using MatmulPlans = Plans<MatmulTrial, MatmulPlan, MatmulArgs>;

double multiply_adds(const MatmulArgs& args) {
  return static_cast<double>(args.y.numel()) * static_cast<double>(args.a.shape[2]);
}

PlanKey<12> key_of(const MatmulArgs& args, std::int64_t rules) {
  const MatmulProblem p = folded(args);
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

std::vector<std::int64_t> family_of(const MatmulProblem& p, const PlanKey<12>& key) {
  const std::int64_t strides = flags({p.a_batch == 0, p.a_k == 1, p.b_batch == 0, p.b_n == 1});
  return {key[0],          key[1], size_class(p.batch), size_class(p.m), size_class(p.n),
          size_class(p.k), strides};
}

PlanRef<weft::MatmulPlan> plan_matmul(const MatmulArgs& args) {
  // Never destroyed: a detached thread may still compute while the process exits.
  static auto& cache = *new PlanCache<MatmulPlan, 12>;
  const Scoped team(&ThreadState::num_threads, team_for(multiply_adds(args)));
  return cache.get(key_of(args, choice_rules()), [&] { return choose_matmul(args); });
}

void run_matmul(const Stream&, const weft::MatmulPlan& of_cache, const MatmulArgs& args,
                void* workspace) {
  const auto& plan = static_cast<const MatmulPlan&>(of_cache);
  const Scoped team(&ThreadState::num_threads, plan.team);
  plan.run(args, workspace);
  activate(args.then, args.y);
}

}  // namespace

std::unique_ptr<MatmulPlan> choose_matmul(const MatmulArgs& args) {
  const MatmulProblem p = folded(args);
  const auto key = key_of(args, 0);
  return MatmulPlans(matmul_candidates(args), args)
      .choose("matmul", p.text(), key, family_of(p, key));
}

std::vector<Measured> measure_matmul(const MatmulArgs& args) {
  std::vector<Measured> report;
  MatmulPlans(matmul_candidates(args), args).time(report, /*whole=*/true);
  return report;
}

MatmulKernels matmul_kernels() { return {plan_matmul, run_matmul}; }

}  // namespace weft::cpu
