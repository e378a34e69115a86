#include "weft/parallel/comm_hooks.h"

#include <gtest/gtest.h>

#include <vector>

#include "weft/parallel/distributed_data_parallel.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/elementwise.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/parallel/nets.h"

namespace weft::parallel {
namespace {

using Floats = std::vector<float>;

// 257 needs nine bits and is rounded to 256; halves and integers of eight bits are exact.
RANKS_TEST(CommHooksTest, Bf16CompressionAveragesEightBitsOfEachGradient, 2) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    const Tensor x = tensor({1, -3, 257, 8}, dtype);
    raw::mul_(x, group.rank() + 1);
    const Reduction reduction = bf16_compress(group, x);
    reduction.work->wait();
    reduction.finish();
    EXPECT_EQ(x.dtype(), dtype);
    EXPECT_EQ(x.to_vector<float>(), (Floats{1.5, -4.5, 384, 12}));
  }
}

RANKS_TEST(CommHooksTest, Bf16CompressionSendsHalfTheBytes, 2) {
  const Tensor x = ones({1000});
  const auto bytes_of = [&](const auto& reduce) {
    const std::int64_t before = group.traffic().bytes_sent;
    const Reduction reduction = reduce();
    reduction.work->wait();
    return group.traffic().bytes_sent - before;
  };
  const std::int64_t full = bytes_of([&] { return Reduction(group.all_reduce(x)); });
  EXPECT_EQ(full - bytes_of([&] { return bf16_compress(group, x); }), 2000);
}

RANKS_TEST(CommHooksTest, TrainingGoesThroughBf16, 2) {
  nn::Sequential model = testing::seeded(5, testing::mlp);
  DistributedDataParallel ddp(model, group, {.bucket_cap_mb = 1e-4, .comm_hook = bf16_compress});
  nn::Sequential exact = nn::clone(model);
  DistributedDataParallel plain(exact, group, {.bucket_cap_mb = 1e-4});
  for (int step = 0; step < 3; ++step) {
    const auto part = testing::batch(step, {8, 6}, DType::f32).shard(group.rank(), 2);
    model.zero_grad();
    exact.zero_grad();
    nn::cross_entropy(ddp(part.x), part.label).backward();
    nn::cross_entropy(plain(part.x), part.label).backward();
    const auto got = model.parameters(), expected = exact.parameters();
    for (std::size_t i = 0; i < got.size(); ++i) {
      // Two parts and their sum, each rounded by 2^-9 of itself.
      const Tensor difference = raw::sub(got[i].grad(), expected[i].grad());
      EXPECT_GT(raw::norm(difference).item<float>(), 0);
      EXPECT_LE(raw::norm(difference).item<float>(),
                0.02f * raw::norm(expected[i].grad()).item<float>());
    }
  }
}

}  // namespace
}  // namespace weft::parallel
