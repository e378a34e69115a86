#include "weft/data/distributed_sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "weft/data/dataloader.h"
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
