// Ranks that are threads fail at every point of a step. The weights must be those of one process
// that takes the steps that were made, by the ranks that were there. tests/examples has the same
// with processes. elastic_parts_test.cc: ZeroRedundancyOptimizer's state when ranks fail;
// elastic_return_test.cc: ranks that come back.
#include <locale>

#include "weft/tests/parallel/elastic_training.h"

namespace weft::parallel {
namespace {

using namespace elastic_tests;
using std::chrono::milliseconds;

struct Case {
  const char* point;
  int rank;
  bool zero = false;
};

class FailureTest : public ::testing::TestWithParam<Case> {};

TEST_P(FailureTest, TheOthersGoOn) {
  const auto [point, dies, zero] = GetParam();
  for (const std::int64_t when : {std::int64_t{0}, std::int64_t{3}, kSteps - 1}) {
    SCOPED_TRACE(when);
    Training training;
    training.zero = zero;
    training.at = [&, point = std::string(point), dies = dies](const char* here, int rank,
                                                               std::int64_t step, bool) {
      if (rank == dies && step == when && here == point) die();
    };
    Launch run;
    run.run(3, [&](const auto& r) { training(r); });
    EXPECT_TRUE(run.errors().empty()) << run.errors()[0];
    Ranks left = {0, 1, 2};
    std::erase(left, dies);
    training.expect_end(left);
    if (when < kSteps - 1 || (std::string(point) != "optimizer" && point != kUpdated)) {
      EXPECT_EQ(training.log.steps().at(kSteps - 1).size(), 2U);
    }
    for (std::int64_t step = 0; step < when; ++step) {
      EXPECT_EQ(training.log.steps().at(step).size(), 3U) << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Points, FailureTest,
                         ::testing::Values(Case{"forward", 0}, Case{"forward", 2},
                                           Case{"first gradient", 2}, Case{"gradient 1", 0},
                                           Case{"last gradient", 0}, Case{"last gradient", 1},
                                           Case{"before vote", 0}, Case{"before vote", 2},
                                           Case{"optimizer", 0}, Case{"optimizer", 1},
                                           Case{"forward", 0, true}, Case{"gradient 1", 1, true},
                                           Case{"before vote", 2, true}, Case{"optimizer", 0, true},
                                           Case{"optimizer", 2, true}, Case{kUpdated, 0, true},
                                           Case{kUpdated, 1, true}, Case{kUpdated, 2, true}),
                         [](const auto& info) {
                           std::string name = info.param.point + std::to_string(info.param.rank) +
                                              (info.param.zero ? "OfZero" : "");
                           std::ranges::replace(name, ' ', '_');
                           return name;
                         });

TEST(ElasticTest, OverEachBackend) {
  for (const char* const backend : {"threads", "ring", "gloo"}) {
    if (!comm::testing::missing_backend(backend).empty()) continue;
    SCOPED_TRACE(backend);
    Training training;
    training.at = [](const char* point, int rank, std::int64_t step, bool) {
      if (rank == 0 && step == 3 && point == std::string("gradient 1")) die();
    };
    Launch run;
    run.backend = backend;
    run.run(2, [&](const auto& r) { training(r); });
    EXPECT_TRUE(run.errors().empty()) << run.errors()[0];
    training.expect_end({1});
  }
}

// --- Several failures ----------------------------------------------------------------------------

TEST(ElasticTest, AnotherRankFailsWhileTheyRegroup) {
  for (const int second : {0, 1}) {
    SCOPED_TRACE(second);
    Training training;
    training.at = [](const char* point, int rank, std::int64_t step, bool) {
      if (rank == 2 && step == 3 && point == std::string("forward")) die();
    };
    Launch run;
    std::atomic<int> groups{0};
    run.on_connect = [&](int rank, bool) {
      if (rank != second || groups++ != 1) return;
      EXPECT_GE(thread_state().step, 2);  // it may still be in the vote before
      die();
    };
    run.run(3, [&](const auto& r) { training(r); });
    EXPECT_TRUE(run.errors().empty()) << run.errors()[0];
    training.expect_end({1 - second});
  }
}

TEST(ElasticTest, WithFewerThanTheLeastTheRunEnds) {
  Training training;
  training.at = [](const char* point, int rank, std::int64_t step, bool) {
    if (rank == 1 && step == 3 && point == std::string("forward")) die();
  };
  Launch run(2);
  run.run(2, [&](const auto& r) { training(r); });
  ASSERT_EQ(run.errors().size(), 1U);
  EXPECT_HAS(run.errors()[0], "rank 1");
  EXPECT_HAS(run.errors()[0], "killed");
  EXPECT_EQ(training.log.steps().size(), 3U);
}

TEST(ElasticTest, TheLowestFailsWhenAllHaveFinished) {
  Training training;
  std::atomic<int> finished{-1};
  training.at = [&](const char* point, int rank, std::int64_t, bool) {
    if (point != std::string("finish")) return;
    if (rank == 0) die();
    finished = rank;
  };
  Launch run;
  run.run(3, [&](const auto& r) { training(r); });
  EXPECT_TRUE(run.errors().empty()) << run.errors()[0];
  EXPECT_EQ(finished, 1);
  training.expect_end({1, 2});
}

TEST(ElasticTest, RanksGoOnFromTheLowestRanksCheckpoint) {
  const auto errors_of = [](const std::string& of_first, const std::string& of_second) {
    Launch run;
    run.run(2, [&](const comm::ElasticRun& r) {
      const nn::Sequential model = model_of(static_cast<std::uint64_t>(r.rank));
      Optimizer sgd(model);
      sgd.set_lr(0.1 + r.rank);
      const Elastic elastic(model, sgd, {.resume = r.rank == 0 ? of_first : of_second, .run = r});
      EXPECT_EQ(sgd.lr(), 0.1);
      EXPECT_TRUE(same_bits(model.parameters()[0], model_of(0).parameters()[0]));
      EXPECT_EQ(elastic.steps(), 6);
    });
    return run.errors();
  };
  const std::string six_steps = "8 6 1 3 0 0\n0 1\n1\n0 0 1\n1\n0 0 1\n";
  EXPECT_TRUE(errors_of(six_steps, six_steps).empty());
  const std::vector<std::string> errors = errors_of(six_steps, "");
  ASSERT_EQ(errors.size(), 2U);
  for (const std::string& error : errors) EXPECT_HAS(error, "some ranks go on from a checkpoint");
  for (const std::string& error : errors_of("six steps", "six steps")) {
    EXPECT_HAS(error, "\"six steps\" are no counters of an elastic run");
  }
}

// A program may choose a locale that writes 1.234, and the next one to read the text none.
TEST(ElasticTest, CountersOfACheckpointDoNotFollowTheLocale) {
  struct Grouping : std::numpunct<char> {
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };
  const std::string at_step_1234 = "1300 1234 1 617 0 0\n0\n1\n1234 0\n1\n617 0\n";
  std::string saved;
  const std::locale before = std::locale::global(std::locale(std::locale(), new Grouping));
  Launch run(1);
  run.run(1, [&](const comm::ElasticRun& r) {
    const nn::Sequential model = model_of(0);
    Optimizer sgd(model);
    Elastic elastic(
        model, sgd,
        {.save = [&](const optim::NamedTensors&, const std::string& counters) { saved = counters; },
         .resume = at_step_1234,
         .run = r});
    EXPECT_TRUE(elastic.next_epoch(3));
  });
  std::locale::global(before);
  EXPECT_TRUE(run.errors().empty());
  EXPECT_EQ(saved, at_step_1234);
}

// A rank with an error of its own ends with that error, and the others go on.
TEST(ElasticTest, AnErrorOfTheClosureLeaves) {
  Training training;
  training.at = [](const char* point, int rank, std::int64_t step, bool) {
    if (rank != 1 || step != 3 || point != std::string("forward")) return;
    WEFT_THROW(InvalidArgument, "test", "its own");
  };
  Launch run;
  run.run(3, [&](const auto& r) { training(r); });
  ASSERT_EQ(run.errors().size(), 1U);
  EXPECT_HAS(run.errors()[0], "its own");
  training.expect_end({0, 2});
}

// An error of another group or of a store: no rank is lost, so no rank waits for a new generation.
TEST(ElasticTest, AnErrorOfAnotherGroupLeavesAtOnce) {
  for (const char* const point : {"forward", "gradient 1"}) {
    SCOPED_TRACE(point);
    Training training;
    training.at = [&](const char* here, int rank, std::int64_t step, bool) {
      if (rank != 1 || step != 3 || std::string(here) != point) return;
      WEFT_THROW(PeerFailed, "test", "of another group");
    };
    Launch run;
    run.run(3, [&](const auto& r) { training(r); });
    ASSERT_EQ(run.errors().size(), 1U);
    EXPECT_HAS(run.errors()[0], "of another group");
    training.expect_end({0, 2});
  }
}

// The rank that reports the mismatch first ends, before its timeout has passed.
TEST(ElasticTest, AMismatchOfCallsEndsARank) {
  Training training;
  training.at = [](const char* point, int rank, std::int64_t step, bool) {
    if (rank != 1 || step != 3 || point != std::string("forward")) return;
    group_of_rank.lock()->all_reduce(zeros({7})).wait();
  };
  Launch run;
  run.run(2, [&](const auto& r) { training(r); });
  ASSERT_EQ(run.errors().size(), 1U);
  EXPECT_EQ(training.models.size(), 1U);
}

TEST(ElasticTest, AStepMayHaveItsZeroGradBefore) {
  Training training;
  training.zero_grad_before = true;
  training.at = [](const char* point, int rank, std::int64_t step, bool) {
    if (rank == 2 && step == 3 && point == std::string("gradient 1")) die();
  };
  Launch run;
  run.run(3, [&](const auto& r) { training(r); });
  EXPECT_TRUE(run.errors().empty()) << run.errors()[0];
  training.expect_end({0, 1});
}

// The only rank with the state fails while it makes a group with a rank that has come back.
TEST(ElasticTest, WithoutAnybodyWhoHasTheStateTheRunEnds) {
  Training training;
  Launch run;
  training.at = [&](const char* point, int rank, std::int64_t step, bool returns) {
    if (returns || point != std::string("forward")) return;
    if (rank == 1 && step == 2) die();
    if (rank == 0 && step == 4) run.await_return(1);
  };
  int groups = 0;
  run.on_connect = [&](int rank, bool) {
    if (rank == 0 && ++groups == 3) die();
  };
  run.run(2, [&](const auto& r) { training(r); }, {1});
  ASSERT_EQ(run.errors().size(), 1U);
  EXPECT_HAS(run.errors()[0], "all ranks that had the state of the training have failed");
}

TEST(ElasticTest, AStepHasToAverage) {
  Launch run;
  run.run(2, [&](const comm::ElasticRun& r) {
    nn::Sequential model = model_of(0);
    Optimizer sgd(model);
    Elastic elastic(model, sgd, {.run = r});
    ASSERT_TRUE(elastic.next_epoch(1));
    const auto local = elastic.ddp().no_sync();
    EXPECT_WEFT_ERROR(elastic.step([&] {
      const Tensor loss = loss_of(elastic(batch_of(r.rank, 0).first), r.rank, 0);
      loss.backward();
      return loss;
    }),
                      InvalidArgument, "the closure of step 0 has averaged no gradients");
  });
  EXPECT_TRUE(run.errors().empty()) << run.errors()[0];
}

// --- A vote that some have passed ----------------------------------------------------------------

/// Its n-th vote fails at the end as if a rank were lost, though the vote has passed on the others.
class LosesAVote final : public comm::Backend {
 public:
  LosesAVote(std::unique_ptr<comm::Backend> inner, int rank, int size, std::atomic<int>& left)
      : Backend(rank, size), inner_(std::move(inner)), left_(left) {}
  const char* name() const override { return "test"; }
  void exchange(std::span<const comm::Outgoing> out, std::span<const comm::Incoming> in,
                const comm::Deadline& deadline) override {
    inner_->exchange(out, in, deadline);
  }
  void abort() noexcept override { inner_->abort(); }
  void all_reduce(const comm::Buffer& x, comm::ReduceOp op,
                  const comm::Deadline& deadline) override {
    Backend::all_reduce(x, op, deadline);
    WEFT_CHECK(x.count != 5 || --left_ != 0, PeerFailed, "test", "it seems that one is gone");
  }

 private:
  const std::unique_ptr<comm::Backend> inner_;
  std::atomic<int>& left_;
};

// Rank 2 dies in its update. One of ranks 0 and 1 fails in the vote; the other one passes it, and
// is a step ahead.
TEST(ElasticTest, WhoFailsInAVoteThatHasPassedUpdatesToo) {
  constexpr std::int64_t kWhen = 3;
  for (const int behind : {0, 1}) {
    SCOPED_TRACE(behind);
    Training training;
    training.bucket_cap_mb = 1;  // no bucket is as small as a vote
    std::atomic<int> behind_fails{0}, updates{0};
    training.at = [&](const char* point, int rank, std::int64_t step, bool) {
      if (point != std::string("optimizer") || step != kWhen) return;
      if (rank == behind) {
        EXPECT_EQ(behind_fails, 0);
      }
      // Rank 2 dies only when the rank that will be ahead has passed the vote, too.
      if (rank == 1 - behind) ++updates;
      if (rank != 2) return;
      while (updates == 0) std::this_thread::yield();
      die();
    };
    Launch run;
    run.backend = "threads";
    behind_fails = static_cast<int>(kWhen) + 2;  // one more: a vote deals the epoch
    std::atomic<int> never{-1};
    run.wrap = [&](int rank, const comm::BackendMaker& make) {
      return [&, make, rank](const auto& store, int place, int size,
                             const auto& deadline) -> std::unique_ptr<comm::Backend> {
        return std::make_unique<LosesAVote>(make(store, place, size, deadline), place, size,
                                            rank == behind ? behind_fails : never);
      };
    };
    run.run(3, [&](const auto& r) { training(r); });
    EXPECT_TRUE(run.errors().empty()) << run.errors()[0];
    EXPECT_EQ(training.log.steps().at(kWhen), (Ranks{0, 1, 2}));
    EXPECT_EQ(training.log.steps().at(kWhen + 1), (Ranks{0, 1}));
    training.expect_end_of_rounding({0, 1}, 1e-6);
  }
}

// --- Messages after a change ---------------------------------------------------------------------

/// Rank 1 of three fails in step 2, and in step 4 rank 2 does `what`. Returns the errors of both.
std::string errors_after_a_change(const std::string& backend, milliseconds timeout,
                                  const std::function<void()>& what) {
  Training training;
  training.at = [&](const char* point, int rank, std::int64_t step, bool) {
    if (point != std::string("forward")) return;
    if (rank == 1 && step == 2) die();
    if (rank == 2 && step == 4) what();
  };
  Launch run(2);
  run.backend = backend;
  run.timeout = timeout;
  run.run(3, [&](const auto& r) { training(r); });
  std::string text;
  for (const std::string& error : run.errors()) text += error + '\n';
  return text;
}

class MessagesTest : public ::testing::TestWithParam<const char*> {};

TEST_P(MessagesTest, ARankThatHangsIsCalledByItsNumber) {
  const std::string errors = errors_after_a_change(GetParam(), milliseconds(5000), [] {
    std::this_thread::sleep_for(milliseconds(7500));
    die();
  });
  EXPECT_HAS(errors, "rank 2 has ");
  EXPECT_HAS(errors, "(waiting for rank 2, last seen in ");
  EXPECT_EQ(errors.find("rank 1"), errors.npos) << errors;
}

TEST_P(MessagesTest, ARankThatFailsIsCalledByItsNumber) {
  const std::string errors = errors_after_a_change(GetParam(), milliseconds(30'000), die);
  EXPECT_HAS(errors, "rank 2 closed its connection");
  EXPECT_HAS(errors, " on rank 0 (0 of the group of ranks 0, 2)");
  EXPECT_HAS(errors, "(rank 2 failed first: killed)");
  EXPECT_EQ(errors.find("rank 1"), errors.npos) << errors;
}

TEST_P(MessagesTest, ARankThatCallsSomethingElseIsCalledByItsNumber) {
  const std::string errors = errors_after_a_change(
      GetParam(), milliseconds(30'000), [] { group_of_rank.lock()->all_reduce(ones({7})).wait(); });
  EXPECT_HAS(errors, ", rank 2 calls operation ");
  EXPECT_HAS(errors, "all_reduce of 7 f32");
  EXPECT_EQ(errors.find("rank 1"), errors.npos) << errors;
}

INSTANTIATE_TEST_SUITE_P(Backends, MessagesTest, ::testing::Values("shm", "ring", "threads"));

// --- What a step that is made again finds --------------------------------------------------------

TEST(ElasticTest, BuffersAndGeneratorsArePutBack) {
  Launch run;
  std::vector<std::string> draws;  // rank 0's random numbers and buffer
  run.run(2, [&](const comm::ElasticRun& r) {
    nn::Sequential model = testing::seeded(
        0, [] { return nn::Sequential{nn::Linear(6, 3), nn::BatchNorm1d(3), nn::Dropout(0.5)}; });
    optim::SGD sgd(model.parameters(), {.lr = 0.1});
    Elastic elastic(model, sgd, {.run = r});
    ASSERT_TRUE(elastic.next_epoch(1));
    for (int step = 0; step < 3; ++step) {
      elastic.step([&] {
        if (r.rank == 0) {
          draws.push_back(default_generator().state() +
                          std::to_string(model.named_buffers()[0].second.to_vector<float>()[0]));
        }
        sgd.zero_grad();
        const Tensor loss = loss_of(elastic(batch_of(r.rank, step).first), r.rank, step);
        if (r.rank == 1 && step == 1) die();
        loss.backward();
        return loss;
      });
    }
    elastic.finish();
  });
  EXPECT_TRUE(run.errors().empty()) << run.errors()[0];
  ASSERT_EQ(draws.size(), 4U);
  EXPECT_NE(draws[0], draws[1]);
  EXPECT_EQ(draws[1], draws[2]);
  EXPECT_NE(draws[2], draws[3]);
}

TEST(ElasticTest, WithoutAGroupPartsNeedAMirror) {
  nn::Sequential model = testing::mlp();
  optim::SGD sgd(model.parameters(), {.lr = 0.1});
  EXPECT_WEFT_ERROR(ZeroRedundancyOptimizer(std::move(sgd), ZeroOptions{}), InvalidArgument,
                    "needs {.mirror = true}");
}

RANKS_TEST(ElasticTest, ItNeedsASecondCopyOfEachPart, 2) {
  nn::Sequential model = testing::mlp();
  ZeroRedundancyOptimizer sgd(optim::SGD(model.parameters(), {.lr = 0.1}), group);
  EXPECT_WEFT_ERROR(Elastic(model, sgd), Unsupported, "make the ZeroRedundancyOptimizer with");
}

TEST(ElasticTest, ItNeedsTheBuffersOfOneRank) {
  nn::Sequential model = testing::mlp();
  optim::SGD sgd(model.parameters(), {.lr = 0.1});
  EXPECT_WEFT_ERROR(Elastic(model, sgd, {.ddp = {.broadcast_buffers = false}}), Unsupported,
                    "broadcast_buffers is not set");
}

// Without a launcher that reports failed ranks.
RANKS_TEST(ElasticTest, WithoutMembershipItIsDdp, 2) {
  nn::Sequential model = testing::mlp();
  optim::SGD sgd(model.parameters(), {.lr = 0.1});
  const std::shared_ptr<comm::ProcessGroup> same(std::shared_ptr<void>(), &group);
  Elastic elastic(
      model, sgd,
      {.run = comm::ElasticRun{.connect = [&](const auto&, const auto&, int) { return same; }}});
  EXPECT_EQ(elastic.ranks(), (Ranks{0, 1}));
  EXPECT_EQ(elastic.rank(), group.rank());
  EXPECT_FALSE(elastic.next_epoch(std::numeric_limits<std::int64_t>::min()));
  EXPECT_WEFT_ERROR(elastic.share(), InvalidArgument, "has no share: call next_epoch() first");
  ASSERT_TRUE(elastic.next_epoch(std::numeric_limits<std::int64_t>::max()));
  EXPECT_EQ(elastic.share(), group.rank());
  elastic.step([&] {
    const Tensor loss = loss_of(elastic(batch_of(group.rank(), 0).first), group.rank(), 0);
    loss.backward();
    return loss;
  });
  EXPECT_FALSE(elastic.next_epoch(1));
  elastic.finish();
}

}  // namespace
}  // namespace weft::parallel
