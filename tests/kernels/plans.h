// What the tests of planned kernels (matmul, conv) share: running a problem through every plan a
// device has for it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "weft/core/runtime/parallel.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/kernels/cpu/heavy.h"
#include "weft/kernels/cpu/simd.h"
#include "weft/tests/kernels/device_buffers.h"

namespace weft::testing {

inline std::vector<cpu::Candidate<cpu::MatmulPlan>> candidates_of(const MatmulArgs& args) {
  return cpu::matmul_candidates(args);
}
inline std::vector<cpu::Candidate<cpu::ConvPlan>> candidates_of(const Conv2dArgs& args) {
  return cpu::conv_candidates(args);
}

/// On the CPU: every candidate that can be built, for teams of 1 and 2, weft's own ones at each
/// vector width, then what plan() takes by the fixed rule. Elsewhere: plan(), fixed and timed.
template <class P, class Args>
void for_each_plan(Device device, PlanRef<P> (*plan)(const Args&), const Args& args,
                   const std::function<void(const P&)>& run) {
  const auto run_candidates = [&](int team, bool own_only) {
    const Scoped threads(&ThreadState::num_threads, team);
    for (const auto& candidate : candidates_of(args)) {
      if (own_only && candidate.name.starts_with("dnnl")) continue;
      const auto made = candidate.make();
      if (!made) continue;
      SCOPED_TRACE("candidate " + candidate.name + ", team of " + std::to_string(team));
      run(*made);
    }
  };
  if (device.is_cpu()) {
    run_candidates(1, false);
    run_candidates(2, false);
    for (const auto level : {cpu::SimdLevel::baseline, cpu::SimdLevel::avx2}) {
      if (level >= cpu::best_simd_level()) break;
      cpu::set_simd_level(level);
      SCOPED_TRACE("SIMD level " + std::to_string(int(level)));
      run_candidates(2, true);
    }
    cpu::set_simd_level(cpu::best_simd_level());
  }
  for (const bool deterministic : {true, false}) {
    // Timing every case of a suite would take minutes and show nothing: the candidates ran above.
    if (device.is_cpu() && !deterministic) continue;
    const Scoped fixed(&ThreadState::deterministic, deterministic);
    SCOPED_TRACE(deterministic ? "the fixed plan" : "the timed plan");
    run(*plan(args));
  }
}

/// Whole numbers in [-bound, bound]. Sums of their products are exact in every dtype while they
/// stay below 2^24 (f32) or 2^8 (bf16), whatever the order: what differs then is a wrong index, not
/// rounding.
inline std::vector<double> whole_values(std::int64_t n, int bound, std::uint64_t seed) {
  std::vector<double> out = random_values(n, -bound - 0.5, bound + 0.5, seed);
  for (double& v : out) v = std::nearbyint(v);
  return out;
}

/// gamma_n = n u / (1 - n u): the most n roundings in a row can do, relative to the sum of the
/// magnitudes of what is added (Higham, Accuracy and Stability of Numerical Algorithms, 3.1
/// and 3.4).
inline double gamma(double n, double u) { return n * u / (1 - n * u); }

/// u of the type a dtype is summed in.
inline double sum_roundoff(DType dtype) {
  return dtype == DType::f64 ? unit_roundoff(DType::f64) : unit_roundoff(DType::f32);
}

/// The bound of one output that is a sum of `terms` products (or values), whose magnitudes add up
/// to `magnitude`: each product and each addition rounds once in the type of sums, whatever the
/// order and wherever FMA saves a rounding, so at most `terms` + 1 roundings meet any one of them
/// (gamma_(terms+1) * magnitude); then storing rounds by u of the dtype, at most twice where a
/// library stores before it adds a bias or an earlier value.
inline double sum_bound(DType dtype, double terms, double magnitude, double value) {
  const double error = gamma(terms + 1, sum_roundoff(dtype)) * magnitude;
  return error +
         2 * unit_roundoff(dtype) * (std::abs(value) + error + magnitude * (dtype == DType::bf16));
}

}  // namespace weft::testing
