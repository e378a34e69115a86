#include "weft/examples/shards.h"
#include "weft/autograd/ops.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/data/dataloader.h"
#include "weft/tensor/creation.h"
#include "weft/tests/train/small_data.h"

namespace weft::examples {
namespace {

// The batches of 3 ranks, each with 3 images in a batch.
std::vector<std::vector<double>> batches(bool shuffle) {
  data::DataLoader loader(
      testing::Numbers{10},
      {.batch_size = 9, .sampler = std::make_shared<ShardsSampler>(10, 3, 3, shuffle)});
  std::vector<std::vector<double>> all;
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& x : loader) all.push_back(x.to_vector<double>());
  }
  return all;
}

// 3 ranks share 10 images: each gets 4, and the first two images come twice.
TEST(Shards, ABatchIsThoseOfAllRanks) {
  const std::vector<std::vector<double>> epoch = {{0, 3, 6, 1, 4, 7, 2, 5, 8}, {9, 0, 1}};
  const auto in_order = batches(false);
  ASSERT_EQ(in_order.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(in_order[i], epoch[i % 2]) << i;

  const auto shuffled = batches(true);
  std::vector<std::vector<double>> expected(4);
  for (int rank = 0; rank < 3; ++rank) {
    const auto sampler = std::make_shared<data::DistributedSampler>(
        10, data::DistributedSamplerOptions{.num_replicas = 3, .rank = rank});
    data::DataLoader loader(testing::Numbers{10}, {.batch_size = 3, .sampler = sampler});
    std::size_t step = 0;
    for (int e = 0; e < 2; ++e) {
      sampler->set_epoch(e);
      for (auto& x : loader) {
        const auto own = x.to_vector<double>();
        expected[step].insert(expected[step].end(), own.begin(), own.end());
        ++step;
      }
    }
  }
  EXPECT_EQ(shuffled, expected);
  EXPECT_NE(shuffled[0], shuffled[2]);
}

TEST(Shards, PartsGoThroughTheModelOneByOne) {
  std::vector<std::int64_t> sizes;
  const Tensor weight = scalar(2).set_requires_grad();
  const auto model = [&](const Tensor& x) {
    sizes.push_back(x.shape(0));
    return std::pair(x * weight, x + 1);
  };
  const Tensor x = from_vector(std::vector<float>{1, 2, 3, 4, 5, 6}, {6, 1});
  const auto [product, sum] = in_shards(model, x, 3);
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{2, 2, 2}));
  EXPECT_EQ(product.to_vector<double>(), (std::vector<double>{2, 4, 6, 8, 10, 12}));
  EXPECT_EQ(sum.to_vector<double>(), (std::vector<double>{2, 3, 4, 5, 6, 7}));
  product.sum().backward();
  EXPECT_EQ(weight.grad().item<double>(), 21);
}

}  // namespace
}  // namespace weft::examples
