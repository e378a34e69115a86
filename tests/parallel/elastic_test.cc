// Ranks that are threads fail at every point of a step. The weights must be those of one process
// that takes the steps that were made, by the ranks that were there. tests/examples has the same
// with processes.
#include "weft/parallel/elastic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "weft/nn/batch_norm.h"
#include "weft/nn/dropout.h"
#include "weft/optim/adam.h"
#include "weft/optim/sgd.h"
#include "weft/parallel/zero.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/parallel/nets.h"

namespace weft::parallel {
namespace {

using comm::Membership;
using testing::same_bits;
using Ranks = std::vector<int>;

struct Died {};  // no weft::Error: nobody but the launcher may catch it
thread_local bool died;
thread_local std::weak_ptr<comm::ProcessGroup> group_of_rank;

/// The end of a rank. A backward that ends by it makes an Error of it.
[[noreturn]] void die() {
  died = true;
  throw Died();
}

/// SGD whose step() may fail.
struct Optimizer : optim::SGD {
  explicit Optimizer(const nn::Sequential& model)
      : SGD(model.parameters(), {.lr = 0.1, .momentum = 0.9}) {}
  void step() override {
    if (before) before();
    SGD::step();
  }
  std::function<void()> before;
};

/// Adam whose step() and state_dict() may fail. With ZeroRedundancyOptimizer the latter is called
/// when parts of the state are dealt out anew.
struct Moments : optim::Adam {
  explicit Moments(const nn::Sequential& model) : Adam(model.parameters(), {.lr = 0.01}) {}
  void step() override {
    if (at) at("optimizer");
    Adam::step();
    if (at) at("updated");
  }
  optim::NamedTensors state_dict() const override {
    if (at) at("deal");
    return Adam::state_dict();
  }
  std::function<void(const char* point)> at;
};

nn::Sequential model_of(std::uint64_t seed) { return testing::seeded(seed, testing::mlp); }

/// The batch of a rank in a step: x, label.
std::pair<Tensor, Tensor> batch_of(int rank, std::int64_t step) {
  Generator draws(static_cast<std::uint64_t>(1000 * rank + step));
  std::vector<float> x(4 * 6);
  draws.uniform(std::span(x));
  return {from_vector(x, {4, 6}), from_vector<std::int64_t>({0, 1, 2, rank % 3}, {4})};
}

Tensor loss_of(const Tensor& y, int rank, std::int64_t step) {
  return nn::cross_entropy(y, batch_of(rank, step).second);
}

/// Who took part in each step. Of several ranks that say so, all must say the same.
class Log {
 public:
  void add(std::int64_t step, const Ranks& ranks) {
    const std::lock_guard lock(mutex_);
    const auto [entry, is_new] = steps_.emplace(step, ranks);
    EXPECT_EQ(entry->second, ranks) << "step " << step;
  }
  const std::map<std::int64_t, Ranks>& steps() const { return steps_; }

 private:
  std::mutex mutex_;
  std::map<std::int64_t, Ranks> steps_;
};

/// Sets the rates of a step.
using Rates = std::function<void(optim::Optimizer& optimizer, std::int64_t step)>;

/// One process that takes the steps.
nn::Sequential replayed(const Log& log, bool zero, const Rates& set_rates) {
  nn::Sequential model = model_of(0);
  Optimizer momentum(model);
  Moments moments(model);
  optim::Optimizer& sgd = zero ? static_cast<optim::Optimizer&>(moments) : momentum;
  for (const auto& [step, ranks] : log.steps()) {
    set_rates(sgd, step);
    std::vector<Tensor> sums;
    for (const int rank : ranks) {
      sgd.zero_grad();
      loss_of(model(batch_of(rank, step).first), rank, step).backward();
      for (std::size_t i = 0; i < sgd.parameters().size(); ++i) {
        const Tensor gradient = sgd.parameters()[i].grad().clone();
        raw::mul_(gradient, 1.0 / static_cast<double>(ranks.size()));
        if (sums.size() <= i) {
          sums.push_back(gradient);
        } else {
          raw::add_scaled_(sums[i], 1, gradient);
        }
      }
    }
    for (std::size_t i = 0; i < sums.size(); ++i) raw::copy_(sgd.parameters()[i].grad(), sums[i]);
    sgd.step();
  }
  return model;
}

/// The launcher, and its ranks.
class Launch {
 public:
  /// A rank's body; it may die().
  using Body = std::function<void(comm::ElasticRun run)>;

  explicit Launch(int least = 1) : least_(least) {}

  /// Runs body() as `n` ranks; those that die in this and are in `again` are started once more.
  void run(int n, const Body& body, const Ranks& again = {}) {
    Membership(store_.duplicate()).begin(n);
    for (int rank = 0; rank < n; ++rank) {
      ranks_.emplace_back([&, rank] {
        bool returns = false;
        for (;; returns = true) {
          if (lives(rank, returns, body)) return;
          Membership(store_.duplicate()).lose({.rank = rank, .cause = "killed"}, least_);
          if (returns || !std::ranges::binary_search(again, rank)) return;
          before_return();
        }
      });
    }
    for (std::thread& rank : ranks_) rank.join();
  }
  /// Returns when the rank waits to come back, and the lowest rank may look again.
  void await_return(int rank) const {
    static_cast<void>(store_.duplicate()->get("elastic/waiting/" + std::to_string(rank)));
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
  }
  /// What other errors ranks ended with.
  const std::vector<std::string>& errors() const { return errors_; }

  std::string backend = "shm";
  /// Called before a rank is started again.
  std::function<void()> before_return = [] {};
  /// Called before a rank makes its group of the generation.
  std::function<void(int rank, bool returns)> on_connect = [](int, bool) {};
  std::function<comm::BackendMaker(int rank, comm::BackendMaker)> wrap =
      [](int, comm::BackendMaker make) { return make; };

 private:
  bool lives(int rank, bool returns, const Body& body) {
    thread_state().rank = rank;
    thread_state().num_threads = 1;
    died = false;
    try {
      body({.membership = std::make_shared<Membership>(store_.duplicate()),
            .rank = rank,
            .returns = returns,
            .connect = [this, rank, returns](const auto& keys, int place, int size) {
              on_connect(rank, returns);
              auto group = std::make_shared<comm::ProcessGroup>(
                  wrap(rank, comm::testing::maker_of(backend)), keys, place, size,
                  comm::ProcessGroupOptions{.timeout = std::chrono::seconds(30)});
              group_of_rank = group;
              return group;
            }});
      return true;
    } catch (const Died&) {
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex_);
      if (!died) errors_.emplace_back(error.what());
    }
    return false;
  }

  const int least_;
  comm::MemoryStore store_;
  std::vector<std::thread> ranks_;
  std::mutex mutex_;
  std::vector<std::string> errors_;
};

constexpr std::int64_t kSteps = 8;

/// What a rank does, and where it may fail.
struct Training {
  Log log;
  std::mutex mutex;
  std::map<int, nn::Sequential> models;  // at the end
  /// Called at these points of step `step`, with the rank's number and whether it has come back.
  std::function<void(const char* point, int rank, std::int64_t step, bool returns)> at =
      [](const char*, int, std::int64_t, bool) {};
  std::int64_t epochs = 1;  // of kSteps steps
  double bucket_cap_mb = 1e-6;
  bool zero_grad_before = false;  // outside of the closure
  bool zero = false;              // Adam, of whose state each rank has two parts
  Rates set_rates = [](optim::Optimizer&, std::int64_t) {};  // in the closure
  std::function<void(optim::Optimizer&)> after_step = [](optim::Optimizer&) {};

  void operator()(const comm::ElasticRun& run) {
    const int rank = run.rank;
    const bool returns = run.returns;
    nn::Sequential model = model_of(static_cast<std::uint64_t>(rank));
    std::int64_t now = 0;
    const auto reach = [&](const char* point) { at(point, rank, now, returns); };
    Optimizer momentum(model);
    momentum.before = [&] { reach("optimizer"); };
    Moments moments(model);
    moments.at = reach;
    ZeroRedundancyOptimizer parts(std::move(moments), {.mirror = true});
    optim::Optimizer& sgd = zero ? static_cast<optim::Optimizer&>(parts) : momentum;
    // Each parameter has a bucket from the second step on. The first layer's gradients come last.
    const char* const gradients[] = {"last gradient", "gradient 1", "gradient 2", "first gradient"};
    for (std::size_t i = 0; i < 4; ++i) {
      autograd::add_grad_hook(model.parameters()[i], [&, i](const Tensor&) {
        reach(gradients[i]);
        return Tensor();
      });
    }
    Elastic elastic(model, sgd,
                    {.ddp = {.bucket_cap_mb = bucket_cap_mb},
                     .state =
                         [&] {
                           reach("send state");
                           return std::string("more\nlines");
                         },
                     .load_state =
                         [&](const std::string& text) {
                           EXPECT_EQ(text, "more\nlines");
                           reach("get state");
                         },
                     .stop =
                         [&] {
                           reach("before vote");
                           return false;
                         },
                     .run = run});
    EXPECT_EQ(elastic.rank(), rank);
    while (elastic.next_epoch(epochs)) {
      while (elastic.steps_in_epoch() < kSteps) {
        now = elastic.steps();
        Ranks took_part;
        if (zero_grad_before) sgd.zero_grad();
        elastic.step([&] {
          reach("forward");
          took_part = elastic.ranks();
          set_rates(sgd, now);
          if (!zero_grad_before) sgd.zero_grad();
          const Tensor loss = loss_of(elastic(batch_of(rank, now).first), rank, now);
          loss.backward();
          return loss;
        });
        EXPECT_EQ(elastic.steps(), now + 1);
        log.add(now, took_part);
        after_step(sgd);
      }
    }
    elastic.finish([&] { reach("finish"); });
    const std::lock_guard lock(mutex);
    if (!elastic.ranks().empty()) models.insert_or_assign(rank, model);
  }

  /// Checks that these ranks are left, with the weights of the replay.
  void expect_end(const Ranks& ranks) {
    const nn::Sequential expected = replayed(log, zero, set_rates);
    ASSERT_EQ(log.steps().size(), static_cast<std::size_t>(kSteps * epochs));
    Ranks left;
    for (const auto& [rank, model] : models) {
      left.push_back(rank);
      for (std::size_t i = 0; i < expected.parameters().size(); ++i) {
        EXPECT_TRUE(same_bits(model.parameters()[i], expected.parameters()[i]))
            << "rank " << rank << ", parameter " << i;
      }
    }
    EXPECT_EQ(left, ranks);
  }
  /// The same for a backend that adds three ranks' numbers in another order than the replay: all
  /// have the same weights, and these differ from the replay's by no more than that.
  void expect_end_of_rounding(const Ranks& ranks, double tolerance) {
    const nn::Sequential expected = replayed(log, zero, set_rates);
    Ranks left;
    for (const auto& [rank, model] : models) {
      left.push_back(rank);
      for (std::size_t i = 0; i < expected.parameters().size(); ++i) {
        const Tensor got = model.parameters()[i];
        EXPECT_TRUE(same_bits(got, models.begin()->second.parameters()[i]));
        const auto a = got.to_vector<float>(), b = expected.parameters()[i].to_vector<float>();
        for (std::size_t k = 0; k < a.size(); ++k) EXPECT_NEAR(a[k], b[k], tolerance);
      }
    }
    EXPECT_EQ(left, ranks);
  }
};

// With ZeroRedundancyOptimizer: before the new values are sent to the other ranks.
constexpr const char* kUpdated = "updated";

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

// Of four ranks, each with its own part of the optimiser's state and that of the one before.
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

// An error of a rank's own is that rank's end.
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

// Of another group, or of a store: no rank is lost, and nobody waits for a generation.
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

// The one that reports it first ends, and not only when its timeout has passed.
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

// The only one with the state fails when it makes the group with one that has come back.
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

/// Loses another rank at the end of its n-th vote, though that has ended on the others.
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

// Rank 2 dies in its update; rank 1 fails in the vote, rank 0 passes it, and is a step ahead.
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
      // The third only dies when the one that is ahead has the vote, too.
      if (rank == 1 - behind) ++updates;
      if (rank != 2) return;
      while (updates == 0) std::this_thread::yield();
      die();
    };
    Launch run;
    run.backend = "threads";
    behind_fails = static_cast<int>(kWhen) + 2;  // a vote deals the epoch
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

/// Fails before a message, once `left` counts down to it from 0 or more.
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

/// Runs `ranks` ranks, of which `fails` fails at the n-th message, for each n, after it has been at
/// `point` while may_fail(), until no message is left before the step after step 3.
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
      // There were fewer messages.
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
// on rank 2 alone, so any other rank may fail at any message: neither what was received before nor
// what is dealt away may be missing. Rank 1 is the one that sends parts whose other copy is on
// rank 3.
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

// The one that comes back has not done it in the step before.
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

// Whether the one that comes back or the one that sends fails: the others have lost nothing.
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

// --- What a step that is made again finds --------------------------------------------------------

TEST(ElasticTest, BuffersAndGeneratorsArePutBack) {
  Launch run;
  std::vector<std::string> draws;  // of rank 0's generator, and its buffer
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

// Without a launcher that tells who has failed.
RANKS_TEST(ElasticTest, WithoutMembershipItIsDdp, 2) {
  nn::Sequential model = testing::mlp();
  optim::SGD sgd(model.parameters(), {.lr = 0.1});
  const std::shared_ptr<comm::ProcessGroup> same(std::shared_ptr<void>(), &group);
  Elastic elastic(
      model, sgd,
      {.run = comm::ElasticRun{.connect = [&](const auto&, int, int) { return same; }}});
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
