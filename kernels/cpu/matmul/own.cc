// weft's own matrix products: always for f64, for other types if they are faster or oneDNN is
// missing.
#include <algorithm>

#include "weft/core/runtime/parallel.h"
#include "weft/kernels/cpu/matmul/gemm.h"
#include "weft/kernels/cpu/matmul/matmul.h"

namespace weft::cpu {

namespace {

// Computes a value of the output from its sum.
template <class T, class Y, class Acc>
void store_value(Y& to, Acc sum, const T* bias, bool accumulate) {
  if (bias) sum += Acc(*bias);
  if (accumulate) sum += Acc(to);
  to = Y(sum);
}

/// T: the type of a, b and the bias; Y: that of y.
template <class T, class Y>
class PackedMatmul final : public MatmulPlan {
 public:
  explicit PackedMatmul(const MatmulArgs& args)
      : problem_(folded(args)),
        gemm_(plan_gemm<Acc>(problem_.batch, problem_.m, problem_.n, problem_.k, num_threads())) {
    workspace_bytes = std::size_t(gemm_.workspace_elements()) * sizeof(Acc);
  }

  void run(const MatmulArgs& args, void* workspace) const override {
    run_gemm<Acc>(gemm_, static_cast<Acc*>(workspace), Source{problem_, args});
  }

 private:
  using Acc = accumulate_t<T>;
  static constexpr std::int64_t kFewColumns = 96;
  static constexpr bool kSameType = std::is_same_v<T, Acc>;  // no conversion of a
  static constexpr bool kSumsIntoY = std::is_same_v<Y, Acc>;

  struct Source {
    const MatmulProblem& p;
    const T* a_data;
    const T* b_data;
    Y* y;
    const T* bias;

    Source(const MatmulProblem& problem, const MatmulArgs& args)
        : p(problem),
          a_data(args.a.as<const T>()),
          b_data(args.b.as<const T>()),
          y(args.y.as<Y>()),
          bias(args.bias.as<const T>()) {}

    PanelsA<Acc> a(std::int64_t i, std::int64_t k0, std::int64_t kc, std::int64_t m0,
                   std::int64_t mc, std::int64_t width, Acc* to) const {
      const T* const from = a_data + i * p.a_batch + m0 * p.a_m + k0 * p.a_k;
      if constexpr (kSameType) {
        // The tiles broadcast single values of a, so they can read rows along k in place. Packing
        // is only worthwhile if many columns read these again.
        if (p.a_k == 1 && p.n <= kFewColumns) return {from, p.a_m, p.a_m * width, 1};
      }
      pack_strided(from, p.a_m, p.a_k, mc, kc, width, to);
      return PanelsA<Acc>::packed(to, width, kc);
    }
    void b(std::int64_t i, std::int64_t k0, std::int64_t kc, std::int64_t n0, std::int64_t nc,
           std::int64_t width, Acc* to) const {
      pack_strided(b_data + i * p.b_batch + n0 * p.b_n + k0 * p.b_k, p.b_n, p.b_k, nc, kc, width,
                   to);
    }
    Target<Acc> target(std::int64_t i, std::int64_t m0, std::int64_t mc, std::int64_t n0,
                       std::int64_t nc) const {
      if constexpr (kSumsIntoY) {
        Y* const to = y + (i * p.m + m0) * p.n + n0;
        if constexpr (kSameType) {
          if (bias) heavy_loops<T>().copy_rows(mc, nc, to, p.n, bias + n0, 0);
        }
        return {to, p.n, bias || p.accumulate};
      } else {
        return {};
      }
    }
    void store(std::int64_t i, std::int64_t m0, std::int64_t mc, std::int64_t n0, std::int64_t nc,
               const Acc* sums, std::int64_t ld) const {
      for (std::int64_t row = 0; row < mc; ++row) {
        Y* to = y + (i * p.m + m0 + row) * p.n + n0;
        for (std::int64_t j = 0; j < nc; ++j) {
          store_value(to[j], sums[row * ld + j], bias ? bias + n0 + j : nullptr, p.accumulate);
        }
      }
    }
  };

  MatmulProblem problem_;
  GemmPlan<Acc> gemm_;
};

}  // namespace

void add_own_matmul(const MatmulArgs& args, std::vector<Candidate<MatmulPlan>>& to) {
  if (args.a.dtype == DType::bf16 && args.y.dtype == DType::f32) {
    to.push_back({"plain", [args] { return std::make_unique<PackedMatmul<bf16, float>>(args); }});
    return;
  }
  dispatch_floating(args.y.dtype, "matmul", [&]<class T>() {
    to.push_back({"plain", [args] { return std::make_unique<PackedMatmul<T, T>>(args); }});
  });
}

}  // namespace weft::cpu
