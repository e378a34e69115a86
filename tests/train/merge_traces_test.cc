// Clocks that differ; ranks_test.cc tests merged traces.
#include "weft/train/merge_traces.h"

#include <gtest/gtest.h>

#include <vector>

namespace weft::train {
namespace {

TEST(MergeTracesTest, OneClockIsFoundToBeOne) {
  const std::vector<Meeting> first = {{100, 110}, {200, 205}};
  EXPECT_EQ(clock_difference(first, first), 0);
  EXPECT_EQ(clock_difference(std::vector<Meeting>{{50, 120}, {203, 230}}, first), 0);
}

TEST(MergeTracesTest, ADifferenceIsTheMiddleOfWhatTheMeetingsAllow) {
  constexpr std::int64_t kHour = 3'600'000'000'000;
  const std::vector<Meeting> first = {{100, 200}, {300, 310}, {400, 500}};
  for (const std::int64_t ahead : {kHour, -kHour}) {
    // For the second meeting: it began at 302 or ended at 306 by the first clock.
    const std::vector<Meeting> mine = {
        {ahead + 50, ahead + 250}, {ahead + 302, ahead + 306}, {ahead + 400, ahead + 500}};
    EXPECT_EQ(clock_difference(mine, first), ahead - 1);
  }
}

TEST(MergeTracesTest, WithoutMeetingsNoDifferenceIsKnown) {
  EXPECT_EQ(clock_difference({}, {}), 0);
}

}  // namespace
}  // namespace weft::train
