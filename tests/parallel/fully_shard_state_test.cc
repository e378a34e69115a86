// fully_shard: values that are written from outside, and states that are saved and loaded.
#include <gtest/gtest.h>

#include <optional>
#include <tuple>
#include <utility>

#include "weft/nn/ema.h"
#include "weft/optim/adadelta.h"
#include "weft/optim/adam.h"
#include "weft/optim/rmsprop.h"
#include "weft/optim/sgd.h"
#include "weft/parallel/distributed_data_parallel.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/parallel/sharded_nets.h"

namespace weft::parallel {
namespace {

using testing::batch;
using testing::loss_of;
using testing::same_bits;

TEST_F(FullyShardTest, TheNextForwardSeesNewValues) {
  comm::run_ranks(2, [&](comm::ProcessGroup& group) {
    nn::Sequential model = testing::seeded(3, net), plain = testing::seeded(3, net);
    const FullySharded sharded = cut(model, group);
    DistributedDataParallel ddp(plain, group);
    optim::SGD sgd(model.parameters(), {.lr = 0.1}), plain_sgd(plain.parameters(), {.lr = 0.1});
    nn::ExponentialMovingAverage ema(model, 0.5), plain_ema(plain, 0.5);
    const Tensor x = batch(9, {4, 6}, DType::f32).x;
    const auto same = [&](const char* when) {
      const NoGrad no_grad;
      EXPECT_TRUE(same_bits(model(x), plain(x))) << when;
    };
    same("at first");
    for (int i = 0; i < 2; ++i) {
      const auto data = batch(i, {12, 6}, DType::f32).shard(group.rank(), 2);
      step(model, sgd, data);
      step(ddp, plain_sgd, data);
      same("after a step");
      ema.update();
      plain_ema.update();
    }
    ema.apply();
    plain_ema.apply();
    same("with averages");
    ema.restore();
    plain_ema.restore();
    same("without averages");
    const nn::NamedTensors other = testing::seeded(4, net).state_dict();
    sharded.load_state_dict(other);
    plain.load_state_dict(other);
    same("after load_state_dict");
    {
      const NoGrad no_grad;
      for (const Tensor& part : model.parameters()) part.fill_(0.5);
      for (const Tensor& whole : plain.parameters()) whole.fill_(0.5);
    }
    same("after writes");
    expect_same(sharded.state_dict(), plain.state_dict());
  });
}

TEST_F(FullyShardTest, AStepBetweenForwardAndBackwardIsCaught) {
  for (const std::optional<bool> reshard : {std::optional<bool>(), {true}, {false}}) {
    for (const bool units : {true, false}) {  // false: only the outermost module
      comm::run_ranks(2, [&](comm::ProcessGroup& group) {
        nn::Sequential model = testing::seeded(3, net);
        const FullyShardOptions options{.reshard_after_forward = reshard};
        units ? cut(model, group, options) : fully_shard(model, group, options);
        optim::SGD sgd(model.parameters(), {.lr = 0.1});
        const auto data = batch(0, {12, 6}, DType::f32).shard(group.rank(), 2);
        step(model, sgd, data);
        const Tensor loss = loss_of(model, data);
        sgd.step();
        EXPECT_WEFT_ERROR(loss.backward(), InvalidArgument, "in place");
      });
    }
  }
}

TEST_F(FullyShardTest, AStateGoesOnOnAnyNumberOfRanks) {
  const nn::NamedTensors values = testing::seeded(5, net).state_dict();
  for (int n = 1; n <= 4; ++n) {
    comm::run_ranks(n, [&](comm::ProcessGroup& group) {
      nn::Sequential model = testing::seeded(3, net);
      const FullySharded sharded = cut(model, group);
      sharded.load_state_dict(values);
      expect_same(sharded.state_dict(), values);
      nn::NamedTensors wrong = values;
      wrong[0].second = zeros({3, 6});
      wrong[1].first = "other";
      EXPECT_WEFT_ERROR(sharded.load_state_dict(wrong), InvalidArgument,
                        "0.bias is missing, 0.weight is [3,6], expected [8,6], other is unknown");
      expect_same(sharded.state_dict(), values);
    });
  }
}

// Optimiser states of the parts, on ranks of which some have no row of the last layer.
template <class Make>
void expect_goes_on(const Make& make) {
  const auto train = [](auto& model, optim::Optimizer& optimizer, int from, int rank, int n) {
    for (int i = from; i < from + 5; ++i) {
      step(model, optimizer, batch(i, {12, 6}, DType::f64).shard(rank, n));
    }
  };
  nn::Sequential plain = converted(testing::seeded(3, net), DType::f64);
  auto plain_optimizer = make(plain);
  train(plain, plain_optimizer, 0, 0, 1);
  nn::NamedTensors half_values, half_state;
  comm::run_ranks(4, [&](comm::ProcessGroup& group) {
    nn::Sequential model = converted(testing::seeded(3, net), DType::f64);
    const FullySharded sharded = cut(model, group);
    auto optimizer = make(model);
    train(model, optimizer, 0, group.rank(), 4);
    const nn::NamedTensors values = sharded.state_dict(),
                           state = sharded.state_of(optimizer).state_dict();
    expect_near(values, plain.state_dict(), 1e-9);
    expect_near(state, plain_optimizer.state_dict(), 1e-9);
    if (group.rank() == 0) std::tie(half_values, half_state) = std::pair(values, state);
  });
  train(plain, plain_optimizer, 5, 0, 1);
  for (int n = 1; n <= 4; ++n) {
    SCOPED_TRACE(n);
    comm::run_ranks(n, [&](comm::ProcessGroup& group) {
      nn::Sequential model = converted(testing::seeded(4, net), DType::f64);
      const FullySharded sharded = cut(model, group);
      auto optimizer = make(model);
      sharded.load_state_dict(half_values);
      auto state = sharded.state_of(optimizer);
      state.load_state_dict(half_state);
      train(model, optimizer, 5, group.rank(), n);
      expect_near(sharded.state_dict(), plain.state_dict(), 1e-9);
    });
  }
}

TEST_F(FullyShardTest, AnOptimisersStateGoesOnOnAnyNumberOfRanks) {
  expect_goes_on(
      [](nn::Sequential& m) { return optim::SGD(m.parameters(), {.lr = 0.1, .momentum = 0.9}); });
  expect_goes_on([](nn::Sequential& m) {
    // A large eps, since Adam turns gradients that are only rounding errors into full steps.
    return optim::AdamW(m.parameters(), {.lr = 0.01, .eps = 1e-3, .amsgrad = true});
  });
  expect_goes_on([](nn::Sequential& m) {
    return optim::RMSprop(m.parameters(), {.lr = 0.01, .eps = 1e-3, .centered = true});
  });
  expect_goes_on(
      [](nn::Sequential& m) { return optim::Adadelta(m.parameters(), {.lr = 0.5, .eps = 1e-3}); });
}

}  // namespace
}  // namespace weft::parallel
