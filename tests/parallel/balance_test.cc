#include "weft/parallel/balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "weft/core/runtime/rng.h"
#include "weft/nn/activation.h"
#include "weft/nn/dropout.h"
#include "weft/nn/linear.h"
#include "weft/parallel/pipeline.h"
#include "weft/tensor/creation.h"
#include "weft/tests/core/expect_error.h"

namespace weft::parallel {
namespace {

using Sizes = std::vector<std::size_t>;
using Costs = std::vector<double>;

TEST(Balance, TheDearestStageIsAsCheapAsCanBe) {
  EXPECT_EQ(balanced(Costs{1, 1, 1, 1}, 2), (Sizes{2, 2}));
  EXPECT_EQ(balanced(Costs{5, 1, 1, 1, 1, 1}, 2), (Sizes{1, 5}));
  EXPECT_EQ(balanced(Costs{1, 2, 3, 4, 5, 6, 7, 8, 9}, 3), (Sizes{5, 2, 2}));
  EXPECT_EQ(balanced(Costs{0, 0, 0}, 3), (Sizes{1, 1, 1}));
  EXPECT_EQ(balanced(Costs{3}, 1), (Sizes{1}));
}

// Compared with all possible cuts.
TEST(Balance, IsNoWorseThanAnyOtherCut) {
  Generator generator(3);
  for (int round = 0; round < 200; ++round) {
    const std::size_t n = 1 + generator.random32() % 9, parts = 1 + generator.random32() % n;
    Costs costs;
    for (std::size_t i = 0; i < n; ++i) costs.push_back(generator.random32() % 20);
    const auto dearest = [&](const Sizes& sizes) {
      double most = 0;
      std::size_t begin = 0;
      for (const std::size_t size : sizes) {
        most = std::max(
            most, std::accumulate(costs.begin() + static_cast<std::ptrdiff_t>(begin),
                                  costs.begin() + static_cast<std::ptrdiff_t>(begin + size), 0.0));
        begin += size;
      }
      return most;
    };
    double best = INFINITY;
    for (unsigned cuts = 0; cuts < 1u << (n - 1); ++cuts) {  // bit i: a cut after layer i
      Sizes sizes{1};
      for (std::size_t i = 0; i + 1 < n; ++i) {
        if (cuts >> i & 1) sizes.push_back(0);
        ++sizes.back();
      }
      if (sizes.size() == parts) best = std::min(best, dearest(sizes));
    }
    const Sizes found = balanced(costs, parts);
    EXPECT_EQ(found.size(), parts);
    EXPECT_EQ(dearest(found), best);
  }
}

TEST(Balance, SaysWhatCannotBeCut) {
  EXPECT_WEFT_ERROR(balanced(Costs{1, 2}, 3), InvalidArgument, "cannot make 3 stages of 2 layers");
  EXPECT_WEFT_ERROR(balanced(Costs{1, 2}, 0), InvalidArgument, "cannot make 0 stages");
  EXPECT_WEFT_ERROR(balanced(Costs{1, NAN}, 1), InvalidArgument, "no number");
  EXPECT_WEFT_ERROR(balanced(Costs{1e308, 1e308, 1e308}, 2), InvalidArgument, "is infinite");
  const nn::Sequential net{nn::Linear(2, 2), nn::ReLU()};
  EXPECT_WEFT_ERROR(cut(net, Sizes{1, 2}), InvalidArgument, "the chain has 2");
  EXPECT_WEFT_ERROR(cut(net, Sizes{0, 2}), InvalidArgument, "one without any");
}

TEST(Balance, CostsAreThoseOfTheLayersWhichStayAsTheyAre) {
  const nn::Sequential net{nn::Linear(16, 16), nn::ReLU(), nn::Linear(16, 512)};
  const Tensor sample = ones({4, 16});
  const Costs seconds = layer_seconds(net, sample, 0.0);
  ASSERT_EQ(seconds.size(), 3u);
  for (const double s : seconds) EXPECT_GT(s, 0);
  EXPECT_FALSE(net.parameters()[0].grad().defined());
  const Costs bytes = layer_bytes(net, sample, 2, 4);
  // Weights with gradient and state; activations: 4 x 512 x 4 bytes, twice.
  EXPECT_GE(bytes[2], 4.0 * (16 * 512 + 512) * 4 + 2 * 4 * 512 * 4);
  EXPECT_LT(bytes[1], bytes[0]);
  EXPECT_EQ(cut(net, balanced(bytes, 2)).size(), 2u);
}

TEST(Balance, TimingDrawsNoneOfTheCallersNumbers) {
  const nn::Sequential net{nn::Linear(4, 4), nn::Dropout(0.5)};
  manual_seed(1);
  const std::string before = default_generators().state();
  layer_seconds(net, ones({2, 4}), 0.0);
  layer_bytes(net, ones({2, 4}), 2, 4);
  Pipeline pipe({net}, {.devices = {Device()}});
  const Tensor sample = ones({2, 4});
  stage_costs(pipe, {&sample, 1}, 0.0);
  EXPECT_EQ(default_generators().state(), before);
}

}  // namespace
}  // namespace weft::parallel
