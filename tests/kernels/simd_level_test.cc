// WEFT_SIMD affects the tables of kernels and oneDNN.
#include "weft/core/base/simd_level.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "weft/kernels/cpu/dnnl/library.h"
#include "weft/kernels/cpu/loops/reduce.h"
#include "weft/kernels/cpu/loops/tiles.h"
#include "weft/kernels/cpu/loops/winograd.h"

namespace weft::cpu {
namespace {

// oneDNN's instruction sets as bits, from dnnl_types.h: each includes the narrower ones.
constexpr int kSse41 = 0x1, kAvx2 = 0x7;

/// True if oneDNN uses nothing beyond `allowed`, or is not used at all.
bool dnnl_keeps_to(int allowed) {
  const std::string name = dnnl_name();
  const auto at = name.rfind(' ');
  if (name.find(" isa ") == std::string::npos) return true;
  return (std::stoi(name.substr(at + 1)) & ~allowed) == 0;
}

// The variable is read once per process, so each case needs its own process, which exits with 0 on
// success.
void exit_at_level(SimdLevel level) {
  setenv("WEFT_SIMD", to_string(level).data(), 1);
  const bool avx2_here = level == SimdLevel::avx2 && best_simd_level() == level;
  const int allowed = level == SimdLevel::baseline ? kSse41 : kAvx2;
  if (&reduce_loops() != &(avx2_here ? avx2::reduce_loops : baseline::reduce_loops)) std::exit(1);
  if (&tile_loops() != &(avx2_here ? avx2::tile_loops : baseline::tile_loops)) std::exit(2);
  if (&winograd_loops() != &(avx2_here ? avx2::winograd_loops : baseline::winograd_loops)) {
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
