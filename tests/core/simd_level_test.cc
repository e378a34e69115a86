#include "weft/core/base/simd_level.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "weft/core/base/error.h"

namespace weft {
namespace {

// The variable is read once per process, so each case needs its own process.
int level_with_environment(const char* text) {
  setenv("WEFT_SIMD", text, 1);
  try {
    std::exit(static_cast<int>(simd_level()));
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    std::exit(100);
  }
}

TEST(SimdLevelDeathTest, EnvironmentLimitsTheLevel) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const SimdLevel level : {SimdLevel::baseline, SimdLevel::avx2, SimdLevel::avx512}) {
    const int want = static_cast<int>(std::min(level, processor_simd_level()));
    EXPECT_EXIT(level_with_environment(to_string(level).data()), ::testing::ExitedWithCode(want),
                "");
  }
  for (const char* text : {"", "AVX2", "avx", "avx2 ", "sse4", "2"}) {
    EXPECT_EXIT(level_with_environment(text), ::testing::ExitedWithCode(100),
                "simd_level. WEFT_SIMD: got '.*', expected baseline, avx2 or avx512");
  }
}

TEST(SimdLevelDeathTest, ReferenceIsBaselineAndMore) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(level_with_environment("reference"), ::testing::ExitedWithCode(0), "");
  for (const bool wanted : {false, true}) {
    setenv("WEFT_SIMD", wanted ? "reference" : "baseline", 1);
    EXPECT_EXIT(std::exit(reference_kernels_wanted()), ::testing::ExitedWithCode(wanted), "");
  }
}

TEST(SimdLevel, SetIsLimitedToo) {
  EXPECT_EQ(simd_level(), best_simd_level());
  for (const SimdLevel level : {SimdLevel::baseline, SimdLevel::avx2, SimdLevel::avx512}) {
    set_simd_level(level);
    EXPECT_EQ(simd_level(), std::min(level, best_simd_level()));
  }
  EXPECT_EQ(simd_level(), best_simd_level());
}

}  // namespace
}  // namespace weft
