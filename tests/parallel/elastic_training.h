// A training under parallel::Elastic by ranks that are threads, which may fail at any point of a
// step, and one process that takes the same steps.
#pragma once

#include <gtest/gtest.h>
#include <algorithm>
#include <atomic>
#include <chrono>
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
#include "weft/parallel/elastic.h"
#include "weft/parallel/zero.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/parallel/nets.h"

namespace weft::parallel::elastic_tests {

using comm::Membership;
using testing::same_bits;
using Ranks = std::vector<int>;

struct Died {};  // no weft::Error: nobody but the launcher may catch it
inline thread_local bool died;
inline thread_local std::weak_ptr<comm::ProcessGroup> group_of_rank;

/// Ends the rank. If it is thrown in a backward, that throws an Error instead.
[[noreturn]] inline void die() {
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

inline nn::Sequential model_of(std::uint64_t seed) { return testing::seeded(seed, testing::mlp); }

/// The batch of a rank in a step: x, label.
inline std::pair<Tensor, Tensor> batch_of(int rank, std::int64_t step) {
  Generator draws(static_cast<std::uint64_t>(1000 * rank + step));
  std::vector<float> x(4 * 6);
  draws.uniform(std::span(x));
  return {from_vector(x, {4, 6}), from_vector<std::int64_t>({0, 1, 2, rank % 3}, {4})};
}

inline Tensor loss_of(const Tensor& y, int rank, std::int64_t step) {
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
inline nn::Sequential replayed(const Log& log, bool zero, const Rates& set_rates) {
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

  /// Runs body() as `n` ranks. A rank that dies and is in `again` is started once more.
  void run(int n, const Body& body, const Ranks& again = {}) {
    Membership(store_.duplicate()).begin(n);
    for (int rank = 0; rank < n; ++rank) {
      ranks_.emplace_back([&, rank] {
        bool returns = false;
        for (;; returns = true) {
          if (lives(rank, returns, body)) return;
          std::this_thread::sleep_for(announced_after);
          Membership(store_.duplicate()).lose({.rank = rank, .cause = "killed"}, least_);
          if (returns || !std::ranges::binary_search(again, rank)) return;
          before_return();
        }
      });
    }
    for (std::thread& rank : ranks_) rank.join();
  }
  /// Returns when the rank waits to come back and the lowest rank is due to look again.
  void await_return(int rank) const {
    static_cast<void>(store_.duplicate()->get("elastic/waiting/" + std::to_string(rank)));
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
  }
  /// The errors, other than die(), with which ranks have ended.
  const std::vector<std::string>& errors() const { return errors_; }

  std::string backend = "shm";
  /// How long after a rank's end the launcher learns of it.
  std::chrono::milliseconds announced_after{0};
  std::chrono::milliseconds timeout{30'000};
  /// Called before a rank is started again.
  std::function<void()> before_return = [] {};
  /// Called before a rank makes its group of a generation.
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
            .connect = [this, rank, returns](const auto& keys, const comm::Generation& generation,
                                             int place) {
              on_connect(rank, returns);
              auto group = std::make_shared<comm::ProcessGroup>(
                  wrap(rank, comm::testing::maker_of(backend)), keys, place,
                  static_cast<int>(generation.ranks.size()),
                  comm::ProcessGroupOptions{.timeout = timeout}, generation);
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

inline constexpr std::int64_t kSteps = 8;

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
  bool zero_grad_before = false;      // outside of the closure
  bool zero = false;                  // Adam; each rank has two parts of its state
  std::atomic<int>* saves = nullptr;  // counts checkpoints
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
    Elastic elastic(
        model, sgd,
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
         .save = saves ? [&](const optim::NamedTensors&, const std::string&) { ++*saves; }
                       : decltype(ElasticOptions::save)(),
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
inline constexpr const char* kUpdated = "updated";

}  // namespace weft::parallel::elastic_tests
