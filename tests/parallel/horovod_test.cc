// Ranks, and the functions that make their models and optimisers equal.
#include "weft/parallel/horovod.h"

#include <gtest/gtest.h>

#include <memory>

#include "weft/nn/batch_norm.h"
#include "weft/optim/adam.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/parallel/nets.h"

namespace weft::parallel {
namespace {

using testing::same_bits;

TEST(HorovodTest, KnowsTheRanks) {
  comm::run_ranks(3, [](comm::ProcessGroup& group) {
    const Horovod hvd(group);
    EXPECT_EQ(hvd.rank(), group.rank());
    EXPECT_EQ(hvd.size(), 3);
    EXPECT_EQ(hvd.local_rank(), group.rank());
    EXPECT_EQ(hvd.group().get(), &group);
    const Horovod second_host(group, {.local_rank = 0});
    EXPECT_EQ(second_host.local_rank(), 0);
  });
  EXPECT_WEFT_ERROR(Horovod(std::shared_ptr<comm::ProcessGroup>()), InvalidArgument,
                    "there is no process group");
}

TEST(HorovodTest, AloneItIsAWorldOfOne) {
  const Horovod hvd = horovod_init();
  EXPECT_EQ(hvd.rank(), 0);
  EXPECT_EQ(hvd.size(), 1);
  EXPECT_EQ(hvd.local_rank(), 0);
  EXPECT_EQ(hvd.allreduce("x", full({1}, 3)).item<float>(), 3);
  EXPECT_EQ(hvd.allgather("x", full({2}, 3)).shape(), Shape({2}));
}

RANKS_TEST(HorovodTest, SeveralLiveSideBySide, 2) {
  const Horovod first(group), second(group), copy = first;
  const NamedWork x = first.allreduce_async("x", full({1}, 1));
  EXPECT_EQ(second.allreduce("x", full({1}, 2)).item<float>(), 2);
  EXPECT_WEFT_ERROR(copy.allreduce_async("x", ones({1})), InvalidArgument, "has asked for 'x'");
  EXPECT_EQ(x.wait().item<float>(), 1);
}

RANKS_TEST(HorovodTest, ParametersAndBuffersBecomeThoseOfTheRoot, 3) {
  const Horovod hvd(group);
  const auto make = [](int seed) {
    nn::Sequential model = testing::seeded(static_cast<std::uint64_t>(seed), [] {
      return nn::Sequential{nn::Linear(3, 2), nn::BatchNorm2d(2)};
    });
    raw::fill_(model[1].as<nn::BatchNorm2d>()->running_mean, seed + 5);
    return model;
  };
  for (const int root : {0, 2}) {
    nn::Sequential model = make(group.rank());
    hvd.broadcast_parameters(model.state_dict(), root);
    const auto expected = make(root).state_dict(), got = model.state_dict();
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(same_bits(got[i].second, expected[i].second)) << got[i].first;
    }
  }
  const nn::Linear other(3, group.rank() == 1 ? 4 : 2);
  EXPECT_WEFT_ERROR(hvd.broadcast_parameters(other.state_dict()), InvalidArgument,
                    "rank 1 gives other tensors than rank 0: it has \"weight f32 [4,3]\", rank 0 "
                    "has \"weight f32 [2,3]\"");
}

// Also on a rank whose optimiser has not made a step.
RANKS_TEST(HorovodTest, OptimisersTakeUpTheRootsState, 2) {
  const Horovod hvd(group);
  for (const int root : {0, 1}) {
    nn::Sequential model = testing::seeded(1, testing::mlp), other = nn::clone(model);
    optim::Adam adam(model.parameters(), {.lr = 0.25}), expected(other.parameters());
    const auto train = [](nn::Sequential& net, optim::Adam& optimiser, int step) {
      optimiser.zero_grad();
      testing::loss_of(net, testing::batch(step, {4, 6}, DType::f32)).backward();
      optimiser.step();
    };
    expected.set_lr(0.5);
    for (int step = 0; step < 3; ++step) train(other, expected, step);
    if (group.rank() == root) adam.load_state_dict(expected.state_dict());
    hvd.broadcast_optimizer_state(adam, root);
    const auto want = expected.state_dict(), got = adam.state_dict();
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].first, want[i].first);
      EXPECT_TRUE(same_bits(got[i].second, want[i].second)) << got[i].first;
    }
    EXPECT_EQ(adam.lr(), 0.5);
  }
}

}  // namespace
}  // namespace weft::parallel
