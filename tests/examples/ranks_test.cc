// The code that the programs with several processes share.
#include "weft/examples/ranks.h"

#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <vector>

#include "weft/core/runtime/phase.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/train/interrupt.h"

namespace weft {
namespace {

// A rank that has no batch left waits in ranks.sum(), and may wait longer than its timeout.
TEST(ExampleRanks, WhoTestsItsBatchesSaysSo) {
  const Scoped rank(&ThreadState::rank, 1);
  std::vector<int> test = {0, 1, 2, 3, 4, 5, 6, 7};
  std::vector<int> own;
  const auto meet = [](const std::string& text) {
    EXPECT_EQ(busy_with(1), nullptr);
    return std::vector(3, text);
  };
  examples::own_batches(test, {.rank = 1, .size = 3, .gather = meet}, [&](int batch) {
    own.push_back(batch);
    const char* const busy = busy_with(1);
    EXPECT_EQ(std::string(busy ? busy : "nothing"), "evaluation");
  });
  EXPECT_EQ(own, (std::vector<int>{1, 4, 7}));
  EXPECT_EQ(busy_with(1), nullptr);
}

// The signal reaches the second of two ranks, in its first batch; the first has tested all of its
// own.
TEST(ExampleRanks, ASignalToOneRankEndsTheTestOfAll) {
  std::vector<int> test = {0, 1, 2, 3, 4, 5};
  std::string of_second;
  int batches = 0;
  const auto second = [&] {
    const auto meet = [&](const std::string& text) {
      of_second = text;
      return std::vector{std::string(text.size(), '\0'), text};
    };
    examples::own_batches(test, {.rank = 1, .size = 2, .gather = meet}, [&](int) {
      ++batches;
      std::raise(SIGINT);
    });
  };
  const auto first = [&] {
    const auto meet = [&](const std::string& text) { return std::vector{text, of_second}; };
    examples::own_batches(test, {.rank = 0, .size = 2, .gather = meet}, [&](int) { ++batches; });
  };
  {
    const train::InterruptScope scope;
    EXPECT_THROW(second(), train::Interrupted);
  }
  EXPECT_EQ(batches, 1);
  EXPECT_THROW(first(), train::Interrupted);
  EXPECT_EQ(batches, 1 + 3);
}

// The slower rank's gradients come 4.8 ms later in each of the 10 steps.
TEST(ExampleRanks, WhatTheLastRankWaitsIsCommunication) {
  const auto meet = [](const std::string& text) { return std::vector<std::string>{text, "0.2"}; };
  const train::TestFigures figures = examples::costs(
      {.rank = 0, .size = 2, .gather = meet}, {comm::Traffic()},
      {parallel::ReducerStats{.reductions = 10, .reduce_ms = 60, .exposed_ms = 50}});
  EXPECT_EQ(figures,
            (train::TestFigures{
                {"bytes_sent", 0}, {"allreduce_ms", 6}, {"wait_ms", 5}, {"exposed_ms", 0.2}}));
}

}  // namespace
}  // namespace weft
