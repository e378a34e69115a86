// The ring as it is recorded: who sends which part to whom, and what becomes of it.
#include "weft/tools/picture/ring_steps.h"

#include <gtest/gtest.h>

#include "weft/tests/core/expect_error.h"

namespace weft::picture {
namespace {

class RingSteps : public ::testing::TestWithParam<int> {};

TEST_P(RingSteps, AreThoseOfReduceScatterAndAllGather) {
  const int n = GetParam();
  const RingRun run = run_ring(n);
  ASSERT_EQ(run.steps.size(), static_cast<std::size_t>(2 * (n - 1)));
  for (std::size_t s = 0; s < run.steps.size(); ++s) {
    const RingStep& step = run.steps[s];
    ASSERT_EQ(step.messages.size(), static_cast<std::size_t>(n));
    const bool adds = s < run.steps.size() / 2;
    const auto& after = s + 1 < run.steps.size() ? run.steps[s + 1].before : run.result;
    auto expected = step.before;
    for (int r = 0; r < n; ++r) {
      const RingMessage& message = step.messages[static_cast<std::size_t>(r)];
      EXPECT_EQ(message.from, r);
      EXPECT_EQ(message.to, (r + 1) % n);
      EXPECT_EQ(message.added, adds) << s;
      EXPECT_EQ(message.bytes * static_cast<std::size_t>(n), run.buffer_bytes);
      const auto from = static_cast<std::size_t>(r), to = static_cast<std::size_t>(message.to);
      const auto part = static_cast<std::size_t>(message.part);
      const RankSet sent = step.before[from][part];
      expected[to][part] = adds ? step.before[to][part] | sent : sent;
    }
    EXPECT_EQ(after, expected) << "after step " << s;
  }
}

TEST_P(RingSteps, EndWithAllNumbersAtAllRanks) {
  const int n = GetParam();
  const RingRun run = run_ring(n);
  const RankSet all = (1u << n) - 1;
  for (const auto& parts : run.result) {
    EXPECT_EQ(parts, std::vector<RankSet>(static_cast<std::size_t>(n), all));
  }
  for (const std::int64_t sent : run.bytes_sent) {
    EXPECT_EQ(sent * n, 2 * (n - 1) * static_cast<std::int64_t>(run.buffer_bytes));
  }
}

TEST_P(RingSteps, FitIntoTheirPicture) {
  const io::Image image = ring_picture(run_ring(GetParam()));
  EXPECT_GT(image.width, 500);
  EXPECT_GT(image.height, 300);
  const auto row = static_cast<std::size_t>(image.width) * 3;
  for (std::size_t i = 0; i < image.pixels.size(); ++i) {
    const bool edge =
        i < 3 * row || i + 3 * row >= image.pixels.size() || i % row < 9 || i % row >= row - 9;
    if (edge) {
      ASSERT_EQ(image.pixels[i], 255) << "at the edge, pixel " << i / 3;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, RingSteps, ::testing::Values(2, 3, 4, kMostRanks));

TEST(RingStepsTest, OneRankIsNoRing) {
  EXPECT_WEFT_ERROR(run_ring(1), InvalidArgument, "got 1 ranks, can show 2 to 5");
  EXPECT_WEFT_ERROR(run_ring(6), InvalidArgument, "got 6 ranks");
}

}  // namespace
}  // namespace weft::picture
