// Times of steps, medians with their intervals, and the order in which sides are measured.
#include "weft/benchmarks/timing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <string>
#include <thread>

#include "weft/benchmarks/sides.h"

namespace weft::bench {
namespace {

// 1 to n in another order.
std::vector<double> numbers(int n) {
  std::vector<double> values(static_cast<std::size_t>(n));
  std::iota(values.rbegin(), values.rend(), 1.0);
  return values;
}

// From tables of the sign test: with n coins, fewer than k heads have a probability of at most 5 %.
TEST(MedianInterval, LiesBetweenTheOrderStatisticsOfTheSignTest) {
  struct Case {
    int n;
    double low, median, high;
  };
  for (const Case& c : {Case{5, 1, 3, 5},
                        {8, 2, 4.5, 7},
                        {10, 2, 5.5, 9},
                        {11, 3, 6, 9},
                        {30, 11, 15.5, 20},
                        {31, 11, 16, 21},
                        {100, 42, 50.5, 59}}) {
    const Interval interval = median_interval(numbers(c.n));
    EXPECT_EQ(interval.low, c.low) << c.n;
    EXPECT_EQ(interval.median, c.median) << c.n;
    EXPECT_EQ(interval.high, c.high) << c.n;
  }
}

TEST(MedianInterval, OfFewValuesIsAllOfThem) {
  for (int n = 1; n < 5; ++n) {
    const Interval interval = median_interval(numbers(n));
    EXPECT_EQ(interval.low, 1) << n;
    EXPECT_EQ(interval.median, (n + 1) / 2.0) << n;
    EXPECT_EQ(interval.high, n) << n;
  }
}

// Records the steps as 's' and the waiting as '|'. Step `slow` and, unless it is the first, those
// after it take 20 ms.
StepTimes times_of(int slow, std::string& order, double most_ms = 1e9) {
  const auto step = [&] {
    const auto at = static_cast<int>(std::count(order.begin(), order.end(), 's'));
    if (slow == 0 ? at == 0 : at >= slow) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    order += 's';
  };
  return time_first_and_fastest(step, [&] { order += '|'; }, 3, 2, most_ms);
}

TEST(StepTimes, TheFirstStepIsTimedAlone) {
  std::string order;
  const StepTimes times = times_of(0, order);
  EXPECT_EQ(order, "s|sss|sss|");
  EXPECT_GE(times.first_ms, 20);
}

TEST(StepTimes, SlowerStepsLaterDoNotMakeTheFirstNegative) {
  std::string order;
  const StepTimes times = times_of(3, order);
  EXPECT_GE(times.first_ms, 0);
  EXPECT_GE(times.ms, 20.0 / 3);
}

// The fourth step is the last of the first block.
TEST(StepTimes, NoBlockBeginsWhenTheTimeIsOver) {
  std::string order;
  times_of(3, order, 20);
  EXPECT_EQ(order, "s|sss|");
}

// Quartiles at 2/8 and 6/8 of the range, around a median of 100.
Side spread_over(double ms) {
  return {"weft", "weft (threads=2)", {}, 1, {100 - ms, 100 - ms / 2, 100, 100 + ms / 2, 100 + ms}};
}

TEST(Sides, AWideSpreadIsAWarning) {
  EXPECT_EQ(spread_warning(spread_over(24)), "");
  EXPECT_EQ(spread_warning(spread_over(26)),
            "the machine is loaded: half of the times of weft (threads=2) are spread over 26 % of "
            "their median. Trust the ratio, not the times");
}

TEST(Sides, TakeTurnsAndBeginInTurn) {
  std::string order;
  const auto side = [&](char name, double ms) {
    return Side{std::string(1, name), "",
                [&order, name, ms](int steps) {
                  order += name;
                  return ms * steps;
                },
                4};
  };
  std::vector<Side> sides = {side('a', 2), side('b', 3), side('c', 8)};
  alternate(sides, 3);
  EXPECT_EQ(order, "abccbaabc");
  EXPECT_EQ(sides[1].ms, std::vector<double>(3, 3.0));  // per step
  EXPECT_EQ(ratios(sides[2], sides[0]), std::vector<double>(3, 4.0));
}

}  // namespace
}  // namespace weft::bench
