// The columns of nccl-tests, and the fit.
#include "weft/benchmarks/bandwidth.h"

#include <gtest/gtest.h>

#include <vector>

#include "weft/tests/core/expect_error.h"

namespace weft::bench {
namespace {

TEST(BusBandwidth, HasTheFactorsOfNcclTests) {
  struct Case {
    const char* collective;
    double of_2, of_4;
  };
  for (const Case& c : {Case{"all_reduce", 1, 1.5},
                        {"broadcast", 1, 1},
                        {"reduce", 1, 1},
                        {"all_gather", 0.5, 0.75},
                        {"gather", 0.5, 0.75},
                        {"scatter", 0.5, 0.75},
                        {"reduce_scatter", 0.5, 0.75},
                        {"all_to_all", 0.5, 0.75}}) {
    EXPECT_EQ(bus_factor(c.collective, 2), c.of_2) << c.collective;
    EXPECT_EQ(bus_factor(c.collective, 4), c.of_4) << c.collective;
  }
  EXPECT_WEFT_ERROR(bus_factor("all_scatter", 2), InvalidArgument,
                    "no collective named 'all_scatter'");
  EXPECT_EQ(gb_per_second(4e6, 500), 8);
}

TEST(Bandwidth, KnowsWhatIsDividedAndWhatAdds) {
  EXPECT_FALSE(is_divided("broadcast"));
  EXPECT_TRUE(is_divided("reduce_scatter"));
  EXPECT_TRUE(is_reduction("reduce_scatter"));
  EXPECT_TRUE(is_reduction("all_reduce"));
  EXPECT_FALSE(is_reduction("all_gather"));
}

TEST(AlphaBeta, FindsTheLineThatPointsLieOn) {
  // 20 us + 1.5 * bytes / (3 GB/s)
  const std::vector<Point> points = {{0, 20}, {4e3, 22}, {4e6, 2020}, {64e6, 32020}};
  const auto fit = fit_alpha_beta(points, 1.5);
  ASSERT_TRUE(fit);
  EXPECT_NEAR(fit->alpha_us, 20, 1e-6);
  EXPECT_NEAR(fit->gb_per_second, 3, 1e-6);
  EXPECT_NEAR(fit->worst_error, 0, 1e-6);
}

// Computed by hand: for (0, 10), (0, 20) and a much larger size, alpha minimises (a/10 - 1)^2 +
// (a/20 - 1)^2; the minimum is at 12.
TEST(AlphaBeta, WeighsErrorsByTheTimes) {
  const std::vector<Point> points = {{0, 10}, {0, 20}, {1e6, 1012}};
  const auto fit = fit_alpha_beta(points, 1);
  ASSERT_TRUE(fit);
  EXPECT_NEAR(fit->alpha_us, 12, 1e-6);
  EXPECT_NEAR(fit->gb_per_second, 1, 1e-6);
  EXPECT_NEAR(fit->worst_error, 0.4, 1e-6);  // 12 instead of 20
}

TEST(AlphaBeta, NeedsTwoSizes) {
  EXPECT_FALSE(fit_alpha_beta({}, 1));
  EXPECT_FALSE(fit_alpha_beta(std::vector<Point>{{64, 10}, {64, 12}}, 1));
}

}  // namespace
}  // namespace weft::bench
