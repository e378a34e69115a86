// WEFT_SIMD reaches the tables of kernels and oneDNN.
#include "weft/core/base/simd_level.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "weft/kernels/cpu/heavy.h"
#include "weft/kernels/cpu/heavy_internal.h"
#include "weft/kernels/cpu/simd.h"
#include "weft/kernels/cpu/simd_heavy.h"
#include "weft/kernels/cpu/simd_winograd.h"

namespace weft::cpu {
namespace {

// The instruction sets of oneDNN as bits, from dnnl_types.h: each has those of the narrower ones.
constexpr int kSse41 = 0x1, kAvx2 = 0x7;

/// True where oneDNN uses nothing beyond `allowed`, or is not there at all.
bool dnnl_keeps_to(int allowed) {
  const std::string name = dnnl_name();
  const auto at = name.rfind(' ');
  if (name.find(" isa ") == std::string::npos) return true;
  return (std::stoi(name.substr(at + 1)) & ~allowed) == 0;
}

// The variable is read once per process, so each case is a process of its own; 0: as it should be.
void exit_at_level(SimdLevel level) {
  setenv("WEFT_SIMD", to_string(level).data(), 1);
  const bool avx2_here = level == SimdLevel::avx2 && best_simd_level() == level;
  const int allowed = level == SimdLevel::baseline ? kSse41 : kAvx2;
  if (simd().f32.reduce.sum.run !=
      (avx2_here ? avx2::reduce_functions : baseline::reduce_functions).f32.reduce.sum.run) {
    std::exit(1);
  }
  if (&heavy_simd() != &(avx2_here ? avx2::heavy_functions : baseline::heavy_functions)) {
    std::exit(2);
  }
  if (&winograd_simd() != &(avx2_here ? avx2::winograd_functions : baseline::winograd_functions)) {
    std::exit(3);
  }
  std::exit(dnnl_keeps_to(allowed) ? 0 : 4);
}

TEST(SimdLevelDeathTest, EnvironmentLimitsKernelsAndLibraries) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const SimdLevel level : {SimdLevel::baseline, SimdLevel::avx2}) {
    EXPECT_EXIT(exit_at_level(level), ::testing::ExitedWithCode(0), "") << to_string(level);
  }
}

}  // namespace
}  // namespace weft::cpu
