// Matrix products in loops of our own: f64 always, the other types where they win or where oneDNN
// is missing.
#include <algorithm>

#include "weft/core/parallel.h"
#include "weft/kernels/cpu/heavy_internal.h"
#include "weft/kernels/cpu/plain_gemm.h"

namespace weft::cpu {

namespace {

// One value of the output from its sum.
template <class T, class Acc>
void store_value(T& to, Acc sum, const T* bias, bool accumulate) {
  if (bias) sum += Acc(*bias);
  if (accumulate) sum += Acc(to);
  to = T(sum);
}

template <class T>
class PackedMatmul final : public MatmulPlan {
 public:
  explicit PackedMatmul(const MatmulArgs& args)
      : problem_(args),
        gemm_(plan_gemm<Acc>(problem_.batch, problem_.m, problem_.n, problem_.k, num_threads())) {
    workspace_bytes = std::size_t(gemm_.workspace_elements()) * sizeof(Acc);
  }

  void run(const MatmulArgs& args, void* workspace) const override {
    const MatmulProblem& p = problem_;
    const T* a = args.a.as<const T>();
    const T* b = args.b.as<const T>();
    T* y = args.y.as<T>();
    const T* bias = args.bias.as<const T>();
    run_gemm<Acc>(
        gemm_, static_cast<Acc*>(workspace),
        [&](std::int64_t i, std::int64_t k0, std::int64_t kc, std::int64_t m0, std::int64_t mc,
            std::int64_t width, Acc* to) {
          pack_strided(a + i * p.a_batch + m0 * p.a_m + k0 * p.a_k, p.a_m, p.a_k, mc, kc, width, to);
        },
        [&](std::int64_t i, std::int64_t k0, std::int64_t kc, std::int64_t n0, std::int64_t nc,
            std::int64_t width, Acc* to) {
          pack_strided(b + i * p.b_batch + n0 * p.b_n + k0 * p.b_k, p.b_n, p.b_k, nc, kc, width, to);
        },
        [&](std::int64_t i, std::int64_t m0, std::int64_t mc, std::int64_t n0, std::int64_t nc,
            const Acc* sums, std::int64_t ld) {
          for (std::int64_t row = 0; row < mc; ++row) {
            T* to = y + (i * p.m + m0 + row) * p.n + n0;
            for (std::int64_t j = 0; j < nc; ++j) {
              store_value(to[j], sums[row * ld + j], bias ? bias + n0 + j : nullptr, p.accumulate);
            }
          }
        });
  }

 private:
  using Acc = accumulate_t<T>;
  MatmulProblem problem_;
  GemmPlan gemm_;
};

// Both operands lie along k: dot products straight from memory, k shared out over the team.
template <class T>
class DotMatmul final : public MatmulPlan {
 public:
  explicit DotMatmul(const MatmulArgs& args) : problem_(args) {
    // A share below a few thousand steps would not repay the summing at the end.
    parts_ = std::clamp<std::int64_t>(problem_.k / 2048, 1, num_threads());
    workspace_bytes = std::size_t(parts_ * part_elements()) * sizeof(T);
  }

  static bool fits(const MatmulProblem& p) {
    // The sums, a vector each, should stay in the second-level cache.
    return p.batch == 1 && p.a_k == 1 && p.b_k == 1 && p.k >= 1024 && p.m * p.n <= 64 * 64;
  }

  void run(const MatmulArgs& args, void* workspace) const override {
    const MatmulProblem& p = problem_;
    T* const sums = static_cast<T*>(workspace);
    parallel_for(parts_, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part) {
        const std::int64_t k0 = p.k * part / parts_;
        const std::int64_t k1 = p.k * (part + 1) / parts_;
        T* const to = sums + part * part_elements();
        std::fill_n(to, part_elements(), T(0));
        loops_.dot(p.m, p.n, k1 - k0, args.a.as<const T>() + k0, p.a_m,
                   args.b.as<const T>() + k0, p.b_n, to);
      }
    });
    T* const y = args.y.as<T>();
    const T* const bias = args.bias.as<const T>();
    for (std::int64_t i = 0; i < p.m * p.n; ++i) {
      T sum = 0;
      for (std::int64_t part = 0; part < parts_; ++part) {
        const T* const lanes = sums + part * part_elements() + i * loops_.lanes;
        for (int l = 0; l < loops_.lanes; ++l) sum += lanes[l];
      }
      store_value(y[i], sum, bias ? bias + i % p.n : nullptr, p.accumulate);
    }
  }

 private:
  std::int64_t part_elements() const { return problem_.m * problem_.n * loops_.lanes; }

  const HeavyLoops<T>& loops_ = heavy_loops<T>();
  MatmulProblem problem_;
  std::int64_t parts_ = 1;
};

}  // namespace

void add_plain_matmul(const MatmulArgs& args, std::vector<Candidate<MatmulPlan>>& to) {
  const MatmulProblem problem(args);
  dispatch_floating(problem.dtype, "matmul", [&]<class T>() {
    if constexpr (!std::is_same_v<T, bf16>) {
      if (DotMatmul<T>::fits(problem)) {
        to.push_back({"plain.dot", [args] { return std::make_unique<DotMatmul<T>>(args); }});
      }
    }
    to.push_back({"plain.packed", [args] { return std::make_unique<PackedMatmul<T>>(args); }});
  });
}

}  // namespace weft::cpu
