#include "weft/data/distributed_sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "weft/core/runtime/thread_state.h"
#include "weft/data/dataloader.h"
#include "weft/data/weighted_random_sampler.h"
#include "weft/tests/core/collected_log.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/data/numbers.h"

namespace weft::data {
namespace {

using Order = std::vector<std::int64_t>;
using Orders = std::vector<Order>;

// The orders of all ranks.
Orders orders(std::int64_t size, DistributedSamplerOptions options, std::int64_t epoch = 0) {
  Orders all;
  for (options.rank = 0; options.rank < options.num_replicas; ++options.rank) {
    DistributedSampler sampler(size, options);
    sampler.set_epoch(epoch);
    Generator unused;
    Order& order = all.emplace_back();
    sampler.order(sampler.draw_seed(unused), order);
    EXPECT_EQ(static_cast<std::int64_t>(order.size()), sampler.size());
    EXPECT_EQ(unused.random32(), Generator().random32());
  }
  return all;
}

std::ptrdiff_t lines(const weft::testing::CollectedLog& log) {
  return std::ranges::count(log.text, '\n');
}

// randperm(10) with seed 0 is 4 1 7 5 3 9 0 8 6 2.
TEST(DistributedSampler, ShufflesAsPyTorch) {
  EXPECT_EQ(orders(10, {.num_replicas = 4}), (Orders{{4, 3, 6}, {1, 9, 2}, {7, 0, 4}, {5, 8, 1}}));
  EXPECT_EQ(orders(10, {.num_replicas = 4}, 1),
            (Orders{{5, 0, 7}, {6, 8, 4}, {1, 9, 5}, {2, 3, 6}}));
  EXPECT_EQ(orders(10, {.num_replicas = 4, .drop_last = true}),
            (Orders{{4, 3}, {1, 9}, {7, 0}, {5, 8}}));
  EXPECT_EQ(orders(10, {.num_replicas = 4, .seed = 7}),
            (Orders{{5, 1, 8}, {0, 7, 2}, {3, 9, 5}, {4, 6, 0}}));
}

TEST(DistributedSampler, AddsTheEpochToTheSeed) {
  EXPECT_EQ(orders(7, {.num_replicas = 3, .seed = 12}, 5),
            (Orders{{2, 5, 0}, {4, 6, 2}, {3, 1, 4}}));
  EXPECT_EQ(orders(7, {.num_replicas = 3, .seed = 12}, 5),
            orders(7, {.num_replicas = 3, .seed = 17}));
}

TEST(DistributedSampler, TakesEveryNthSampleWithoutShuffle) {
  EXPECT_EQ(orders(10, {.num_replicas = 4, .shuffle = false}),
            (Orders{{0, 4, 8}, {1, 5, 9}, {2, 6, 0}, {3, 7, 1}}));
  EXPECT_EQ(orders(10, {.num_replicas = 4, .shuffle = false, .drop_last = true}),
            (Orders{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(orders(8, {.num_replicas = 4, .shuffle = false, .drop_last = true}),
            (Orders{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(orders(3, {.num_replicas = 1, .shuffle = false}), (Orders{{0, 1, 2}}));
}

TEST(DistributedSampler, TakesBlocksAsLibtorch) {
  EXPECT_EQ(orders(10, {.num_replicas = 4, .shuffle = false, .contiguous = true}),
            (Orders{{0, 1, 2}, {3, 4, 5}, {6, 7, 8}, {9, 0, 1}}));
  EXPECT_EQ(orders(10, {.num_replicas = 4, .contiguous = true}),
            (Orders{{4, 1, 7}, {5, 3, 9}, {0, 8, 6}, {2, 4, 1}}));
}

TEST(DistributedSampler, PadsMoreThanOnceAround) {
  EXPECT_EQ(orders(3, {.num_replicas = 8, .shuffle = false}),
            (Orders{{0}, {1}, {2}, {0}, {1}, {2}, {0}, {1}}));
  EXPECT_EQ(orders(3, {.num_replicas = 4, .shuffle = false, .drop_last = true}), Orders(4));
  EXPECT_EQ(orders(0, {.num_replicas = 2}), Orders(2));
}

TEST(DistributedSampler, GivesEachSampleOnceWithoutPadding) {
  EXPECT_EQ(orders(10, {.num_replicas = 4, .shuffle = false, .pad = false}),
            (Orders{{0, 4, 8}, {1, 5, 9}, {2, 6}, {3, 7}}));
  EXPECT_EQ(orders(10, {.num_replicas = 4, .shuffle = false, .contiguous = true, .pad = false}),
            (Orders{{0, 1, 2}, {3, 4, 5}, {6, 7}, {8, 9}}));
  EXPECT_EQ(orders(2, {.num_replicas = 3, .shuffle = false, .pad = false}), (Orders{{0}, {1}, {}}));
}

TEST(DistributedSampler, AnEpochWithoutItsNumberIsWarnedOfOnce) {
  const weft::testing::CollectedLog log;
  const auto sampler =
      std::make_shared<DistributedSampler>(8, DistributedSamplerOptions{.num_replicas = 2});
  DataLoader loader(weft::testing::Numbers{8}, {.batch_size = 2, .sampler = sampler});
  const auto run = [&] {
    for (auto& batch : loader) static_cast<void>(batch);
  };
  for (const int epoch : {0, 1}) {
    sampler->set_epoch(epoch);
    run();
  }
  EXPECT_EQ(log.text, "");
  run();
  EXPECT_EQ(lines(log), 1);
  EXPECT_HAS(log.text, "call set_epoch()");
  run();
  EXPECT_EQ(lines(log), 1);
}

TEST(DistributedSampler, TheSameNumberForEveryEpochIsWarnedOf) {
  const weft::testing::CollectedLog log;
  for (const bool shuffle : {true, false}) {
    DistributedSampler sampler(8, {.num_replicas = 2, .shuffle = shuffle});
    Generator generator;
    Order order;
    for (int epoch = 0; epoch < 3; ++epoch) {
      sampler.set_epoch(10);
      sampler.order(sampler.draw_seed(generator), order);
    }
  }
  EXPECT_EQ(lines(log), 1);
}

TEST(DistributedSampler, ALoaderTakesAnEpochUpAgain) {
  const auto sampler = std::make_shared<DistributedSampler>(
      20, DistributedSamplerOptions{.num_replicas = 2, .rank = 1});
  const auto make = [&] {
    return DataLoader(weft::testing::Numbers{20}, {.batch_size = 3, .sampler = sampler});
  };
  sampler->set_epoch(4);
  auto first = make();
  Order whole;
  std::string state;
  for (auto& batch : first) {
    for (const std::int64_t i : batch.x.to_vector<std::int64_t>()) whole.push_back(i);
    if (whole.size() == 3) state = first.state();
  }
  sampler->set_epoch(9);  // does not affect the epoch that is resumed
  auto second = make();
  second.set_state(state);
  Order rest;
  for (auto& batch : second) {
    for (const std::int64_t i : batch.x.to_vector<std::int64_t>()) rest.push_back(i);
  }
  EXPECT_EQ(rest, Order(whole.begin() + 3, whole.end()));
}

// A part of an epoch: `steps` steps, or all that are left, by ranks with batches of this size.
struct Part {
  int ranks;
  std::int64_t batch, steps;
};

// The samples of the part in the shared order: one of each rank in turn. Ranks that go on write
// their states to `states`; at the end of an epoch there are none.
Order take(std::int64_t size, const DistributedSamplerOptions& shared, const Part& part,
           std::vector<std::string>& states, bool drop_last = false, bool is_same = false) {
  std::vector<Orders> batches(static_cast<std::size_t>(part.steps));  // by step and rank
  std::vector<std::string> left;
  for (int rank = 0; rank < part.ranks; ++rank) {
    DistributedSamplerOptions options = shared;
    options.num_replicas = part.ranks;
    options.rank = rank;
    DataLoader loader(weft::testing::Numbers{size},
                      {.batch_size = part.batch,
                       .drop_last = drop_last,
                       .sampler = std::make_shared<DistributedSampler>(size, options)});
    if (is_same) {
      loader.set_state(states[static_cast<std::size_t>(rank)]);
    } else if (!states.empty()) {
      loader.set_state_of_other_ranks(states);
    }
    std::int64_t steps = 0, before = -1;
    for (auto& batch : loader) {
      if (before < 0) before = loader.position() - 1;
      batches[static_cast<std::size_t>(steps)].push_back(batch.x.to_vector<std::int64_t>());
      if (++steps == part.steps) break;
    }
    if (loader.position() > 0) {
      EXPECT_EQ(loader.position(), before + steps);
      left.push_back(loader.state());
    }
  }
  states = left;
  Order all;
  for (const Orders& step : batches) {
    for (std::size_t i = 0; !step.empty() && i < step[0].size(); ++i) {
      for (const Order& of_rank : step) {
        if (i < of_rank.size()) all.push_back(of_rank[i]);
      }
    }
  }
  return all;
}

// However often their number changes, the ranks see the order of the epoch, and then its beginning
// as padding.
TEST(DistributedSampler, OtherRanksDealOutTheRestOfAnEpoch) {
  const std::vector<std::vector<Part>> runs = {{{4, 2, 1}, {2, 3, 1}, {3, 1, 99}},
                                               {{1, 5, 2}, {8, 1, 99}},
                                               {{8, 1, 2}, {1, 3, 99}},
                                               {{2, 4, 1}, {2, 3, 99}},
                                               {{4, 1, 1}, {4, 2, 1}, {1, 1, 1}, {3, 2, 99}}};
  for (const std::int64_t size : {40, 23, 8, 3, 1}) {
    for (const bool shuffle : {true, false}) {
      const DistributedSamplerOptions shared = {.shuffle = shuffle, .seed = 5};
      const Order whole = orders(size, shared)[0];
      for (const std::vector<Part>& run : runs) {
        Order seen;
        std::vector<std::string> states;
        std::int64_t padding = 0;
        for (const Part& part : run) {
          const Order more = take(size, shared, part, states);
          seen.insert(seen.end(), more.begin(), more.end());
          padding = std::ssize(seen) - size;
          if (states.empty()) break;
        }
        ASSERT_GE(padding, 0) << size;
        EXPECT_LT(padding, 8) << size;
        for (std::int64_t i = 0; i < std::ssize(seen); ++i) {
          EXPECT_EQ(seen[static_cast<std::size_t>(i)], whole[static_cast<std::size_t>(i % size)])
              << size << " at " << i;
        }
      }
    }
  }
}

TEST(DistributedSampler, WhatWasDealtOutAnewIsTakenUpToTheBit) {
  const DistributedSamplerOptions shared = {.seed = 5};
  for (const std::int64_t steps : {1, 2, 3}) {
    std::vector<std::string> states, again;
    take(23, shared, {4, 1, 2}, states);
    again = states;
    const Order whole = take(23, shared, {3, 2, 99}, states);  // 5 samples of each
    Order parts = take(23, shared, {3, 2, steps}, again);
    const Order rest = take(23, shared, {3, 2, 99}, again, false, true);
    parts.insert(parts.end(), rest.begin(), rest.end());
    EXPECT_EQ(parts, whole) << steps;
  }
}

// A run that stops behind the last batch, before its epoch counts as complete.
TEST(DistributedSampler, NothingIsLeftAfterTheLastBatch) {
  for (const bool drop_last : {true, false}) {  // 4 or 6 of 22 samples are left out, or none
    const DistributedSamplerOptions shared = {.drop_last = drop_last};
    std::vector<std::string> states;
    take(22, shared, {4, 4, drop_last ? 1 : 2}, states, drop_last);
    ASSERT_EQ(states.size(), 4U);
    EXPECT_EQ(take(22, shared, {1, 1, 99}, states, drop_last), Order());
    EXPECT_TRUE(states.empty());
  }
}

// No sample is seen twice; what is left out would not fill a step of the ranks that end the epoch.
TEST(DistributedSampler, OtherRanksLeaveOutLess) {
  std::vector<std::string> states;
  const DistributedSamplerOptions shared = {.drop_last = true};
  Order seen = take(23, shared, {4, 2, 1}, states, true);
  const Order more = take(23, shared, {2, 3, 99}, states, true);
  EXPECT_EQ(more.size(), 12U);
  seen.insert(seen.end(), more.begin(), more.end());
  const Order whole = orders(23, {})[0];
  EXPECT_EQ(seen, Order(whole.begin(), whole.begin() + 20));
}

TEST(DistributedSampler, StatesOfEarlierVersionsAreDealtOutAnewToo) {
  for (const std::int64_t position :
       {std::int64_t{0}, std::int64_t{2}, std::int64_t{3}, std::int64_t{1} << 62}) {
    std::vector<std::string> states(
        4, "weft.dataloader.2 23 6 2 0 1 7 " + std::to_string(position) + " 5");
    DataLoader loader(weft::testing::Numbers{23}, {.batch_size = 5});
    loader.set_state_of_other_ranks(states, 8);
    const std::int64_t done = position < 3 ? position * 8 : 23;
    EXPECT_EQ(loader.size(), position + (23 - done + 4) / 5);
    Order rest;
    for (auto& batch : loader) {
      for (const std::int64_t i : batch.x.to_vector<std::int64_t>()) rest.push_back(i);
    }
    Order expected;
    for (std::int64_t i = done; i < 23; ++i) expected.push_back(i);
    EXPECT_EQ(rest, expected);
    EXPECT_EQ(loader.size(), 5) << "the next epoch is whole";
    EXPECT_WEFT_ERROR(loader.set_state_of_other_ranks(states), InvalidArgument,
                      "the state does not say which samples of a common order are done; resume "
                      "with as many ranks and the same batch size, or from the end of an epoch");
  }
}

TEST(DistributedSampler, WhatIsNotDealtInTurnIsNotDealtOutAnew) {
  std::vector<std::string> blocks, turns;
  const DistributedSamplerOptions contiguous = {.contiguous = true};
  take(20, contiguous, {2, 3, 1}, blocks);
  EXPECT_WEFT_ERROR(take(20, {}, {4, 3, 99}, blocks), InvalidArgument, "the state does not say");
  take(20, contiguous, {2, 3, 99}, blocks, false, true);  // as many go on
  take(20, {}, {2, 3, 1}, turns);
  std::vector<std::string> again = turns;
  EXPECT_WEFT_ERROR(take(20, contiguous, {4, 3, 99}, again), InvalidArgument,
                    "this loader's sampler does not say");
  EXPECT_WEFT_ERROR(take(21, {}, {4, 3, 99}, turns), InvalidArgument, "of a data set of 20");
  // Here each rank has drawn an order of its own.
  std::vector<std::string> own;
  for (const std::uint64_t seed : {1, 2}) {
    manual_seed(seed);
    DataLoader loader(
        weft::testing::Numbers{20},
        {.sampler = std::make_shared<WeightedRandomSampler>(std::vector<double>(20, 1.0), 20)});
    for (auto& batch : loader) {
      (void)batch;
      break;
    }
    own.push_back(loader.state());
  }
  DataLoader loader(weft::testing::Numbers{20}, {.batch_size = 3,
                                                 .sampler = std::make_shared<WeightedRandomSampler>(
                                                     std::vector<double>(20, 1.0), 20)});
  EXPECT_WEFT_ERROR(loader.set_state_of_other_ranks(own), InvalidArgument,
                    "rank 1 had another order, or place in it, than rank 0");
  EXPECT_WEFT_ERROR(loader.set_state_of_other_ranks({}), InvalidArgument, "of no ranks");
  // One order for both is the same for one.
  own[1] = own[0];
  EXPECT_WEFT_ERROR(loader.set_state_of_other_ranks(own, 2), InvalidArgument,
                    "after 1 steps of 2 samples 1 of a common order are done");
  EXPECT_WEFT_ERROR(loader.set_state_of_other_ranks(own, 1, 2), InvalidArgument,
                    "shares its order with 1 ranks, the run has 2");
  loader.set_state_of_other_ranks(own);
  std::int64_t rest = 0;
  for (auto& batch : loader) rest += batch.x.numel();
  EXPECT_EQ(rest, 19);
}

TEST(DistributedSampler, RefusesWhatCannotBe) {
  EXPECT_WEFT_ERROR(DistributedSampler(4, {.num_replicas = 0}), InvalidArgument,
                    "num_replicas is 0, needs at least 1");
  EXPECT_WEFT_ERROR(DistributedSampler(4, {.num_replicas = 2, .rank = 2}), InvalidArgument,
                    "rank is 2, needs 0 to 1");
  EXPECT_WEFT_ERROR(DistributedSampler(4, {.num_replicas = 2, .rank = -1}), InvalidArgument,
                    "rank is -1");
  EXPECT_WEFT_ERROR(DistributedSampler(-1, {}), InvalidArgument, "size is -1");
  EXPECT_WEFT_ERROR(DistributedSampler(4, {.drop_last = true, .pad = false}), InvalidArgument,
                    "choose one");
  DistributedSampler sampler(4, {});
  EXPECT_WEFT_ERROR(sampler.set_epoch(-1), InvalidArgument, "epoch is -1");
}

}  // namespace
}  // namespace weft::data
