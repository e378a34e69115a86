// Ranks that fail under parallel::Elastic and come back, and failures while they do.
#include "weft/tests/parallel/elastic_training.h"

namespace weft::parallel {
namespace {

using namespace elastic_tests;

// --- Ranks that come back ------------------------------------------------------------------------

class ReturnTest : public ::testing::TestWithParam<std::pair<int, bool>> {};

TEST_P(ReturnTest, ARankComesBack) {
  const auto [dies, zero] = GetParam();
  Training training;
  training.zero = zero;
  Launch run;
  training.at = [&, dies = dies](const char* point, int rank, std::int64_t step, bool returns) {
    if (point != std::string("forward") || returns) return;
    if (rank == dies && step == 2) die();
    if (rank == 1 && step == 4) run.await_return(dies);
  };
  run.run(3, [&](const auto& r) { training(r); }, {dies});
  EXPECT_TRUE(run.errors().empty()) << run.errors()[0];
  training.expect_end({0, 1, 2});
  EXPECT_EQ(training.log.steps().at(2).size(), 2U);
  EXPECT_EQ(training.log.steps().at(kSteps - 1).size(), 3U);
}

INSTANTIATE_TEST_SUITE_P(Ranks, ReturnTest,
                         ::testing::Values(std::pair(0, false), std::pair(2, false),
                                           std::pair(0, true), std::pair(2, true)),
                         [](const auto& info) {
                           return "rank" + std::to_string(info.param.first) +
                                  (info.param.second ? "OfZero" : "");
                         });

/// Rank 2 of three dies in step 2, and comes back before step 5.
void lose_and_return(Training& training, Launch& run) {
  std::atomic<bool> is_time{false};
  run.before_return = [&] {
    while (!is_time) std::this_thread::yield();
  };
  training.at = [&](const char* point, int rank, std::int64_t step, bool returns) {
    if (point != std::string("forward") || returns) return;
    if (rank == 2 && step == 2) die();
    if (rank != 1 || step != 4) return;
    is_time = true;
    run.await_return(2);
  };
  run.run(3, [&](const auto& r) { training(r); }, {2});
}

TEST(ElasticTest, RatesOfStepsMayBeSetInTheClosure) {
  Training training;
  training.set_rates = [](optim::Optimizer& optimizer, std::int64_t step) {
    optimizer.set_lr(0.1 / (1 + static_cast<double>(step)));
  };
  Launch run;
  lose_and_return(training, run);
  EXPECT_TRUE(run.errors().empty()) << run.errors()[0];
  training.expect_end({0, 1, 2});
}

// The rank that comes back has not run after_step for the step before.
TEST(ElasticTest, RatesThatDifferAreRefused) {
  Training training;
  training.after_step = [](optim::Optimizer& optimizer) { optimizer.set_lr(0.9 * optimizer.lr()); };
  Launch run;
  lose_and_return(training, run);
  ASSERT_FALSE(run.errors().empty());
  for (const std::string& error : run.errors()) {
    EXPECT_HAS(error, "the ranks' optimisers have other lr or momentum in step 5");
  }
}

// Rank 2 fails in epoch 0, and waits in epoch 1, of which it has no share.
TEST(ElasticTest, WithoutAShareOfTheEpochARankWaitsForTheNext) {
  Training training;
  training.epochs = 3;
  Launch run;
  std::atomic<bool> has_begun{false};
  run.before_return = [&] {
    while (!has_begun) std::this_thread::yield();
  };
  training.at = [&](const char* point, int rank, std::int64_t step, bool returns) {
    if (point != std::string("forward") || returns) return;
    if (rank == 2 && step == 2) die();
    if (rank != 0 || step != kSteps + 2) return;
    has_begun = true;
    run.await_return(2);
  };
  run.run(3, [&](const auto& r) { training(r); }, {2});
  EXPECT_TRUE(run.errors().empty()) << run.errors()[0];
  training.expect_end({0, 1, 2});
  EXPECT_EQ(training.log.steps().at(2 * kSteps - 1), (Ranks{0, 1}));
  EXPECT_EQ(training.log.steps().at(2 * kSteps), (Ranks{0, 1, 2}));
}

TEST(ElasticTest, ARankThatComesBackTooLateEnds) {
  Training training;
  Launch run;
  std::atomic<bool> finishes{false};
  run.before_return = [&] {
    while (!finishes) std::this_thread::yield();
  };
  training.at = [&](const char* point, int rank, std::int64_t step, bool) {
    if (rank == 1 && step == 2 && point == std::string("forward")) die();
    if (rank != 0 || point != std::string("finish")) return;
    finishes = true;
    run.await_return(1);
  };
  run.run(2, [&](const auto& r) { training(r); }, {1});
  EXPECT_TRUE(run.errors().empty()) << run.errors()[0];
  training.expect_end({0});
}

struct Copying {
  const char* point;
  int rank;
  Ranks left;
  bool zero = false;
};
class CopyTest : public ::testing::TestWithParam<Copying> {};

// The returning rank fails, or the rank that sends to it: the others lose nothing.
TEST_P(CopyTest, ARankFailsWhileTheStateIsCopied) {
  const Copying& is = GetParam();
  Training training;
  training.zero = is.zero;
  Launch run;
  std::atomic<bool> waits{false};  // for rank 2, which must not have failed again before
  run.before_return = [&] {
    while (!waits) std::this_thread::yield();
  };
  training.at = [&](const char* point, int rank, std::int64_t step, bool returns) {
    if (rank == is.rank && (returns || step >= 4) && point == std::string(is.point)) die();
    if (point != std::string("forward") || returns) return;
    if (rank == 2 && step == 2) die();
    if (rank != 1 || step != 4 || waits.exchange(true)) return;
    run.await_return(2);
  };
  run.run(3, [&](const auto& r) { training(r); }, {2});
  EXPECT_TRUE(run.errors().empty()) << run.errors()[0];
  training.expect_end(is.left);
}

INSTANTIATE_TEST_SUITE_P(
    Points, CopyTest,
    ::testing::Values(Copying{"send state", 0, {1, 2}}, Copying{"get state", 2, {0, 1}},
                      Copying{"send state", 0, {1, 2}, true}, Copying{"get state", 2, {0, 1}, true},
                      Copying{"deal", 0, {1, 2}, true}, Copying{"deal", 2, {0, 1}, true}),
    [](const auto& info) {
      std::string name =
          info.param.point + std::to_string(info.param.rank) + (info.param.zero ? "OfZero" : "");
      std::ranges::replace(name, ' ', '_');
      return name;
    });

}  // namespace
}  // namespace weft::parallel
