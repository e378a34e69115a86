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

// The ranks' gradients come 8 ms later in turn; the second one takes no part in the last step.
TEST(ExampleRanks, WhatTheLastRankOfAStepWaitsIsCommunication) {
  const parallel::ReducerStats first{.reductions = 4, .reduce_ms = 48, .exposed_ms = {9, 1, 10, 2}};
  const parallel::ReducerStats second{.reductions = 3, .exposed_ms = {1, 9, 2}};
  std::string of_second;
  const auto costs = [&](int rank, const parallel::ReducerStats& stats) {
    const auto meet = [&](const std::string& text) {
      if (rank == 1) of_second = text;
      return std::vector{text, of_second};
    };
    return examples::costs({.rank = rank, .size = 2, .gather = meet}, {comm::Traffic()}, {stats});
  };
  costs(1, second);
  EXPECT_EQ(costs(0, first),
            (train::TestFigures{
                {"bytes_sent", 0}, {"allreduce_ms", 12}, {"wait_ms", 5.5}, {"exposed_ms", 1.5}}));
}

}  // namespace
}  // namespace weft
