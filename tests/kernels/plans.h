// Shared by the tests of planned kernels (matmul, conv): runs a problem with every plan that a
// device has for it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "weft/core/base/simd_level.h"
#include "weft/core/runtime/parallel.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/kernels/backend.h"
#include "weft/kernels/cpu/conv/conv.h"
#include "weft/kernels/cpu/matmul/matmul.h"
#include "weft/tests/kernels/device_buffers.h"

namespace weft::testing {

inline std::vector<cpu::Candidate<cpu::MatmulPlan>> candidates_of(const MatmulArgs& args) {
  return cpu::matmul_candidates(args);
}
inline std::vector<cpu::Candidate<cpu::ConvPlan>> candidates_of(const Conv2dArgs& args) {
  return cpu::conv_candidates(args);
}

/// On the CPU: every candidate that can be built, for teams of 1 and 2, weft's own ones at each
/// vector width, then the plan of the fixed rule. On other devices: plan(), fixed and timed.
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
    for (const auto level : {SimdLevel::baseline, SimdLevel::avx2}) {
      if (level >= best_simd_level()) break;
      set_simd_level(level);
      SCOPED_TRACE("SIMD level " + std::to_string(int(level)));
      run_candidates(2, true);
    }
    set_simd_level(best_simd_level());
  }
  for (const bool deterministic : {true, false}) {
    // Timing every case of a suite would take minutes and prove nothing: the candidates have run
    // above.
    if (device.is_cpu() && !deterministic) continue;
    const Scoped fixed(&ThreadState::deterministic, deterministic);
    SCOPED_TRACE(deterministic ? "the fixed plan" : "the timed plan");
    run(*plan(args));
  }
}

}  // namespace weft::testing
