#include "weft/data/weighted_random_sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "weft/core/runtime/rng.h"
#include "weft/data/dataloader.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/data/numbers.h"

namespace weft::data {
namespace {

using Batches = std::vector<std::vector<std::int64_t>>;

Batches epoch(DataLoader<testing::Numbers>& loader) {
  Batches batches;
  for (auto& [x] : loader) batches.push_back(x.to_vector<std::int64_t>());
  return batches;
}

TEST(WeightedRandomSampler, DrawsAsPyTorchForAnyNumberOfWorkers) {
  const auto cases =
      nlohmann::json::parse(std::ifstream("tests/data/goldens/weighted_orders.json"));
  ASSERT_EQ(cases.size(), 7u);
  for (const auto& item : cases) {
    const auto weights = item["weights"].get<std::vector<double>>();
    const auto sampler =
        std::make_shared<WeightedRandomSampler>(weights, item["num_samples"], item["replacement"]);
    EXPECT_EQ(sampler->size(), item["num_samples"].get<std::int64_t>());
    for (const int workers : {0, 2}) {
      SCOPED_TRACE(item.dump().substr(0, 80) + " workers " + std::to_string(workers));
      manual_seed(item["seed"]);
      DataLoader loader(testing::Numbers{std::ssize(weights)},
                        {.batch_size = 6, .workers = workers, .sampler = sampler});
      for (const auto& expected : item["epochs"]) EXPECT_EQ(epoch(loader), expected.get<Batches>());
      EXPECT_EQ(draw_int64(default_generator()), item["next"].get<std::uint64_t>());
    }
  }
}

TEST(WeightedRandomSampler, GoesOnInTheMiddleOfAnEpoch) {
  const std::vector<double> weights{1, 2, 3, 4};
  for (const bool replacement : {false, true}) {
    const auto make = [&] {
      return DataLoader(testing::Numbers{4}, {.batch_size = 1,
                                              .sampler = std::make_shared<WeightedRandomSampler>(
                                                  weights, 4, replacement)});
    };
    auto whole = make(), rest = make();
    manual_seed(8);
    const Batches expected = epoch(whole);
    manual_seed(8);
    auto part = make();
    {
      auto it = part.begin();
      ++it;
    }
    const std::string generator = default_generator().state();
    rest.set_state(part.state());
    EXPECT_EQ(epoch(rest), Batches(expected.begin() + 2, expected.end()));
    EXPECT_EQ(default_generator().state(), generator) << "nothing was drawn";
  }
  std::vector<std::int64_t> order;
  EXPECT_WEFT_ERROR(WeightedRandomSampler(weights, 4).order("17", order), InvalidArgument,
                    "[generator] bad state");
}

// Each index as often as its weight demands, within five standard deviations of the count.
TEST(WeightedRandomSampler, DrawsByWeight) {
  const std::vector<double> weights{1, 0, 3, 6};
  constexpr std::int64_t kDraws = 20000;
  const WeightedRandomSampler sampler(weights, kDraws);
  Generator generator(5);
  std::vector<std::int64_t> order;
  sampler.order(sampler.draw_seed(generator), order);
  std::vector<std::int64_t> counts(weights.size());
  for (const std::int64_t i : order) ++counts[static_cast<std::size_t>(i)];
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double p = weights[i] / 10;
    EXPECT_NEAR(static_cast<double>(counts[i]), p * kDraws, 5 * std::sqrt(p * (1 - p) * kDraws));
  }
}

// PyTorch draws them in some order, too.
TEST(WeightedRandomSampler, WithoutReplacementWeightsOfZeroComeLast) {
  const WeightedRandomSampler sampler({0, 2, 0, 1}, 4, false);
  Generator generator;
  std::vector<std::int64_t> order;
  sampler.order(sampler.draw_seed(generator), order);
  EXPECT_EQ(order[0] + order[1], 4);
  EXPECT_EQ(std::vector(order.begin() + 2, order.end()), (std::vector<std::int64_t>{0, 2}));
}

TEST(WeightedRandomSampler, RefusesBadArguments) {
  const auto refuses = [](std::vector<double> weights, std::int64_t samples, const char* text) {
    EXPECT_WEFT_ERROR(WeightedRandomSampler(weights, samples, false), InvalidArgument, text);
  };
  refuses({1}, 0, "[weighted_random_sampler] num_samples is 0, needs at least 1");
  refuses({1, -1}, 1, "a weight is -1");
  refuses({1, std::nan("")}, 1, "a weight is ");
  refuses({std::numeric_limits<double>::infinity()}, 1, "a weight is inf");
  refuses({0, 0}, 1, "none of the 2 weights is above 0");
  refuses({}, 1, "none of the 0 weights is above 0");
  refuses({1, 1}, 3, "3 samples without replacement of 2");
  EXPECT_EQ(WeightedRandomSampler({1, 1}, 3).size(), 3);
}

}  // namespace
}  // namespace weft::data
