// The state of ZeroRedundancyOptimizer, of which two ranks have each part, when ranks fail.
#include "weft/tests/parallel/elastic_training.h"

namespace weft::parallel {
namespace {

using namespace elastic_tests;

// Two of four ranks fail. Each rank has its own part of the optimiser's state and that of the rank
// before it.
void lose_two_of_four(int second, const char* point, Training& training, Launch& run) {
  training.zero = true;
  std::atomic<bool> lost{false};
  training.at = [&, point = std::string(point)](const char* here, int rank, std::int64_t step,
                                                bool) {
    if (rank == 3 && step == 3 && here == std::string("forward")) {
      lost = true;
      die();
    }
    if (rank == second && lost && here == point) die();
  };
  run.on_connect = [&, point = std::string(point)](int rank, bool) {
    if (rank == second && lost && point == "connect") die();
  };
  run.run(4, [&](const auto& r) { training(r); });
}

TEST(ElasticTest, NeighboursMayHaveTheLastCopiesOfAPart) {
  for (const int second :
       {0, 2}) {  // has the copy of rank 3's part; has a part whose copy rank 3 has
    for (const char* const point : {"connect", "deal"}) {
      SCOPED_TRACE(::testing::Message() << second << ' ' << point);
      Training training;
      Launch run;
      lose_two_of_four(second, point, training, run);
      ASSERT_EQ(run.errors().size(), 2U);
      for (const std::string& error : run.errors()) {
        EXPECT_HAS(error, "a rank and its mirror have failed, and with them both copies of a part");
      }
    }
  }
}

TEST(ElasticTest, OthersHaveBothPartsOfTwoThatAreNoNeighbours) {
  for (const char* const point : {"connect", "deal"}) {
    SCOPED_TRACE(point);
    Training training;
    Launch run;
    lose_two_of_four(1, point, training, run);
    EXPECT_TRUE(run.errors().empty()) << run.errors()[0];
    training.expect_end({0, 2});
  }
}

// The group of the steps does not fail then, and the launcher announces late that a rank has ended.
TEST(ElasticTest, ARankFailsWhileTheStateIsGatheredForACheckpoint) {
  for (const int dies : {0, 2}) {
    SCOPED_TRACE(dies);
    std::atomic<int> saves{0};
    Training training;
    training.zero = true;
    training.epochs = 2;
    training.saves = &saves;
    training.at = [&](const char* point, int rank, std::int64_t, bool) {
      if (rank == dies && point == std::string("deal")) die();
    };
    Launch run;
    run.announced_after = std::chrono::milliseconds(1500);
    run.run(3, [&](const auto& r) { training(r); });
    EXPECT_TRUE(run.errors().empty()) << run.errors()[0];
    Ranks left = {0, 1, 2};
    std::erase(left, dies);
    training.expect_end(left);
    EXPECT_EQ(saves, 1);
    EXPECT_EQ(training.log.steps().at(kSteps - 1).size(), 3U);
    EXPECT_EQ(training.log.steps().at(kSteps).size(), 2U);
  }
}

// --- A failure while parts are dealt out ---------------------------------------------------------

/// Nodes of two ranks: the mirror of a rank is two places after it.
class NodesOfTwo {
 public:
  NodesOfTwo() { setenv("LOCAL_WORLD_SIZE", "2", 1); }
  ~NodesOfTwo() { unsetenv("LOCAL_WORLD_SIZE"); }
};

TEST(ElasticTest, APartOutlivesANode) {
  const NodesOfTwo nodes;
  for (const int first : {0, 2}) {
    SCOPED_TRACE(first);
    Training training;
    training.zero = true;
    training.at = [&](const char* point, int rank, std::int64_t step, bool) {
      if (rank / 2 == first / 2 && step == 3 && point == std::string("forward")) die();
    };
    Launch run;
    run.run(4, [&](const auto& r) { training(r); });
    EXPECT_TRUE(run.errors().empty()) << run.errors()[0];
    training.expect_end({2 - first, 3 - first});
  }
}

/// Fails before a message when `left`, which counts the messages down, is 0. Never if it is
/// negative.
class FailsInAMessage final : public comm::Backend {
 public:
  FailsInAMessage(std::unique_ptr<comm::Backend> inner, int rank, int size, std::atomic<int>& left)
      : Backend(rank, size), inner_(std::move(inner)), left_(left) {}
  const char* name() const override { return "test"; }
  void exchange(std::span<const comm::Outgoing> out, std::span<const comm::Incoming> in,
                const comm::Deadline& deadline) override {
    WEFT_CHECK(left_ < 0 || left_-- != 0, Internal, "test", "killed before a message");
    inner_->exchange(out, in, deadline);
  }
  void abort() noexcept override { inner_->abort(); }

 private:
  const std::unique_ptr<comm::Backend> inner_;
  std::atomic<int>& left_;
};

/// For each n: runs `ranks` ranks, of which `fails` fails at its n-th message after reaching
/// `point` while may_fail is true. Ends when no message is left before the step after step 3.
void fail_at_each_message(
    int ranks, int fails, const std::string& point,
    const std::function<void(Training&, std::atomic<bool>& may_fail)>& prepare,
    const Ranks& survivors) {
  bool is_over = false;
  for (int message = 0; !is_over; ++message) {
    SCOPED_TRACE(::testing::Message() << fails << ", message " << message);
    ASSERT_LT(message, 100);
    Training training;
    training.zero = true;
    std::atomic<int> left{-1}, never{-1};
    std::atomic<bool> may_fail{false};
    prepare(training, may_fail);
    training.at = [&, before = training.at](const char* here, int rank, std::int64_t step,
                                            bool returns) {
      before(here, rank, step, returns);
      if (rank != fails || !may_fail) return;
      if (left < 0 && here == point) left = message;
      // It sent fewer than n messages.
      if (left >= 0 && here == std::string("forward") && step > 3) is_over = true;
    };
    Launch run;
    run.backend = "threads";
    run.wrap = [&](int rank, const comm::BackendMaker& make) {
      return [&, make, rank](const auto& store, int place, int size,
                             const auto& deadline) -> std::unique_ptr<comm::Backend> {
        return std::make_unique<FailsInAMessage>(make(store, place, size, deadline), place, size,
                                                 rank == fails ? left : never);
      };
    };
    run.run(ranks, [&](const auto& r) { training(r); });
    ASSERT_EQ(run.errors().size(), 1U);
    EXPECT_HAS(run.errors()[0], "killed before a message");
    // Adam divides by the gradient's size: a last bit of a small one moves a weight by more.
    training.expect_end_of_rounding(survivors, 1e-4);
  }
}

// Rank 0 is lost, and ranks 1 to 3 deal out the parts anew. Then each part is on two of these, or
// on rank 2 alone, so any other rank may fail at any message: no rank may lose a part that it has
// just received or is giving away. Rank 1 sends the parts whose other copy is on rank 3.
TEST(ElasticTest, ARankFailsAtAnyMessageOfADeal) {
  const NodesOfTwo nodes;
  const auto prepare = [](Training& training, std::atomic<bool>& may_fail) {
    training.at = [&](const char* point, int rank, std::int64_t step, bool) {
      if (rank != 0 || step != 3 || point != std::string("forward")) return;
      may_fail = true;
      die();
    };
  };
  fail_at_each_message(4, 1, "deal", prepare, {2, 3});
  fail_at_each_message(4, 3, "deal", prepare, {1, 2});
}

TEST(ElasticTest, ARankFailsAtAnyMessageWithNewValues) {
  for (const int fails : {0, 1, 2}) {
    const auto prepare = [&](Training& training, std::atomic<bool>& may_fail) {
      training.at = [&](const char*, int rank, std::int64_t step, bool) {
        if (rank == fails && step == 3) may_fail = true;
      };
    };
    Ranks survivors = {0, 1, 2};
    std::erase(survivors, fails);
    fail_at_each_message(3, fails, kUpdated, prepare, survivors);
  }
}

}  // namespace
}  // namespace weft::parallel
