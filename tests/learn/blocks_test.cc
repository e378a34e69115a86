// The code that pages of exercises print for programs of one's own, with right solutions.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "weft/learn/05_average_gradients/solution.h"
#include "weft/learn/06_overlap/solution.h"
#include "weft/learn/08_scatter_gather/solution.h"
#include "weft/learn/10_checkpointing/solution.h"
#include "weft/learn/11_zero/solution.h"
#include "weft/learn/12_fsdp_unit/solution.h"
#include "weft/learn/13_parallel_linear/solution.h"
#include "weft/weft.h"

namespace weft {
namespace {

using Values = std::vector<float>;
using Group = std::shared_ptr<comm::ProcessGroup>;
using Train = std::function<void(nn::Sequential& model, const Group& group, const Tensor& x,
                                 const Tensor& y)>;

/// All weights after the training, on each of two ranks, which have samples of their own.
std::vector<Values> weights(const Train& train) {
  std::vector<Values> all(2);
  comm::run_ranks(2, [&](comm::ProcessGroup& ranks) {
    const Group group(std::shared_ptr<void>(), &ranks);
    manual_seed(1);
    nn::Sequential model{nn::Linear(5, 4), nn::Tanh(), nn::Linear(4, 3)};
    manual_seed(static_cast<std::uint64_t>(10 + group->rank()));
    const Tensor x = randn({4, 5}), y = randn({4, 3});
    train(model, group, x, y);
    for (const Tensor& parameter : model.parameters()) {
      const Values values = parameter.detach().to_vector<float>();
      Values& mine = all[static_cast<std::size_t>(group->rank())];
      mine.insert(mine.end(), values.begin(), values.end());
    }
  });
  return all;
}

std::vector<Values> weights_of_ddp(int steps) {
  return weights([steps](auto& model, auto& group, const Tensor& x, const Tensor& y) {
    parallel::DistributedDataParallel ddp(model, group);
    optim::SGD sgd(model.parameters(), {.lr = 0.1});
    for (int step = 0; step < steps; ++step) {
      sgd.zero_grad();
      nn::mse_loss(ddp(x), y).backward();
      sgd.step();
    }
  });
}

// With two ranks a mean has the same bits, however it is made.
TEST(PagesOfExercises, AverageGradients) {
  const auto own = weights([](auto& model, auto& group, const Tensor& x, const Tensor& y) {
    optim::SGD sgd(model.parameters(), {.lr = 0.1});
#include "weft/tests/learn/own_average.inc"
  });
  EXPECT_EQ(own, weights_of_ddp(1));
}

TEST(PagesOfExercises, Overlap) {
  const auto own = weights([](auto& model, auto& group, const Tensor& x, const Tensor& y) {
    optim::SGD sgd(model.parameters(), {.lr = 0.1});
#include "weft/tests/learn/own_overlap.inc"
  });
  EXPECT_EQ(own, weights_of_ddp(1));
}

TEST(PagesOfExercises, CommHook) {
  const auto own = weights([](auto& model, auto& group, const Tensor& x, const Tensor& y) {
    optim::SGD sgd(model.parameters(), {.lr = 0.1});
#include "weft/tests/learn/own_hook.inc"
  });
  EXPECT_EQ(own, weights_of_ddp(1));
}

// Half of its rate of 0.2 is that of DDP's.
TEST(PagesOfExercises, Zero) {
  const auto own = weights([](auto& model, auto& group, const Tensor& x, const Tensor& y) {
    parallel::DistributedDataParallel ddp(model, group);
#include "weft/tests/learn/own_zero.inc"
  });
  EXPECT_EQ(own, weights_of_ddp(1));
}

TEST(PagesOfExercises, Unit) {
  const auto own = weights([](auto& model, auto& group, const Tensor& x, const Tensor& y) {
#include "weft/tests/learn/own_unit.inc"
    learn::gather(*group, unit);
  });
  EXPECT_EQ(own, weights_of_ddp(3));
}

TEST(PagesOfExercises, ParallelLinear) {
  const Tensor w = rand({4, 3}), b = rand({4}), v = rand({2, 4}), c = rand({2}), in = rand({5, 3});
  const Values whole = linear(tanh(linear(in, w, b)), v, c).to_vector<float>();
  comm::run_ranks(2, [&](comm::ProcessGroup& one) {
    const Group group(std::shared_ptr<void>(), &one);
    const std::int64_t first = 2 * group->rank();
    const Tensor x = in, w1 = w.narrow(0, first, 2), b1 = b.narrow(0, first, 2),
                 w2 = v.narrow(1, first, 2), b2 = c;
#include "weft/tests/learn/own_layers.inc"
    const Values got = y.to_vector<float>();
    ASSERT_EQ(got.size(), whole.size());
    // Sums of four numbers below 1, cut in two.
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], whole[i], 1e-6);
  });
}

TEST(PagesOfExercises, ScatterAndGather) {
  set_host_devices(2);
  const Tensor x = rand({5, 3});
#include "weft/tests/learn/own_scatter.inc"
  EXPECT_EQ(y.to_vector<float>(), tanh(x).to_vector<float>());
}

TEST(PagesOfExercises, Checkpoint) {
  nn::Linear model(3, 2);
  const Tensor x = rand({5, 3}).set_requires_grad();
#include "weft/tests/learn/own_checkpoint.inc"
  y.sum().backward();
  const Values gradient = model.weight.grad().to_vector<float>();
  model.zero_grad();
  tanh(model(x)).sum().backward();
  EXPECT_EQ(gradient, model.weight.grad().to_vector<float>());
}

}  // namespace
}  // namespace weft
