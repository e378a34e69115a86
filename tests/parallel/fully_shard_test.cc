// fully_shard: the proofs that it trains as DistributedDataParallel and one process do, its memory
// and its traffic.
#include "weft/parallel/fully_shard.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "weft/autograd/autocast.h"
#include "weft/autograd/checkpoint.h"
#include "weft/core/runtime/allocator.h"
#include "weft/nn/batch_norm.h"
#include "weft/nn/ema.h"
#include "weft/nn/module_list.h"
#include "weft/nn/summary.h"
#include "weft/optim/adam.h"
#include "weft/optim/rmsprop.h"
#include "weft/optim/sgd.h"
#include "weft/parallel/distributed_data_parallel.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/parallel/nets.h"

namespace weft::parallel {
namespace {

using testing::batch;
using testing::loss_of;
using testing::same_bits;

class FullyShardTest : public ::testing::Test {
 protected:
  const Scoped<bool> deterministic_{&ThreadState::deterministic, true};
  const Scoped<int> threads_{&ThreadState::num_threads, 1};
};

nn::Sequential net() {
  return {nn::Linear(6, 8), nn::ReLU(), nn::Linear(8, 5), nn::Tanh(), nn::Linear(5, 3)};
}

nn::Sequential converted(nn::Sequential model, DType dtype) {
  model.to(dtype);
  return model;
}

/// Each Linear but the last, then the rest.
FullySharded cut(nn::Sequential& model, comm::ProcessGroup& group,
                 const FullyShardOptions& options = {}) {
  model.apply([&](nn::ModuleBase& m) {
    if (m.name() == "0" || m.name() == "2") fully_shard(m, group, options);
  });
  return fully_shard(model, group, options);
}

void expect_same(const nn::NamedTensors& got, const nn::NamedTensors& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].first, expected[i].first);
    EXPECT_TRUE(same_bits(got[i].second, expected[i].second)) << got[i].first;
  }
}

void expect_near(const nn::NamedTensors& got, const nn::NamedTensors& expected, double most) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_LE(testing::relative_difference(got[i].second, expected[i].second), most)
        << got[i].first;
  }
}

template <class Model>
void step(Model& model, optim::Optimizer& optimizer, const testing::LabelledBatch& data) {
  optimizer.zero_grad();
  loss_of(model, data).backward();
  optimizer.step();
}

TEST_F(FullyShardTest, ListsPartsOfEachParameter) {
  comm::run_ranks(3, [&](comm::ProcessGroup& group) {
    nn::Sequential model = testing::seeded(3, net);
    const nn::NamedTensors before = testing::seeded(3, net).state_dict();
    const FullySharded sharded = cut(model, group);
    // 8 rows in chunks of 3, 5 in chunks of 2, 3 of 1.
    const std::vector<std::int64_t> rows = {group.rank() < 2 ? 3 : 2,
                                            group.rank() < 2 ? 3 : 2,
                                            group.rank() < 2 ? 2 : 1,
                                            group.rank() < 2 ? 2 : 1,
                                            1,
                                            1};
    const auto parts = model.named_parameters();
    ASSERT_EQ(parts.size(), rows.size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      EXPECT_EQ(parts[i].first, before[i].first);
      EXPECT_EQ(parts[i].second.shape(0), rows[i]) << parts[i].first;
      EXPECT_TRUE(parts[i].second.is_leaf() && parts[i].second.requires_grad());
    }
    expect_same(sharded.state_dict(), before);
    // Counts are those of the whole model.
    EXPECT_EQ(model.parameter_count(), net().parameter_count());
    EXPECT_EQ(model.to_string(), net().to_string());
    EXPECT_EQ(nn::summary(model, {1, 6}).to_string(), nn::summary(net(), {1, 6}).to_string());
    EXPECT_EQ(sharded.units(), (std::vector<std::string>{"2", "0", "Sequential"}));
  });
}

// With more ranks a ring adds up a number's shares in another order in a reduce-scatter than in an
// all-reduce of buckets, shm always in the order of the ranks.
TEST_F(FullyShardTest, TwentyStepsAreThoseOfDdpBitForBit) {
  for (const auto& [backend, n] :
       {std::pair("threads", 2), {"ring", 2}, {"gloo", 2}, {"shm", 2}, {"shm", 3}, {"shm", 4}}) {
    SCOPED_TRACE(::testing::Message() << backend << ' ' << n);
    comm::testing::in_groups(backend, n, [&, ranks = n](comm::ProcessGroup& group) {
      nn::Sequential model = testing::seeded(3, net), plain = testing::seeded(3, net);
      const FullySharded sharded = cut(model, group);
      DistributedDataParallel ddp(plain, group);
      optim::Adam adam(model.parameters(), {.lr = 0.01});
      optim::Adam plain_adam(plain.parameters(), {.lr = 0.01});
      for (int i = 0; i < 20; ++i) {
        const auto data = batch(i, {12, 6}, DType::f32).shard(group.rank(), ranks);
        step(model, adam, data);
        step(ddp, plain_adam, data);
        expect_same(sharded.state_dict(), plain.state_dict());
      }
    });
  }
}

TEST_F(FullyShardTest, IsOneProcessWithTheWholeBatch) {
  for (const std::optional<bool> reshard : {std::optional<bool>(), {true}, {false}}) {
    for (int n = 1; n <= 4; ++n) {
      SCOPED_TRACE(n);
      comm::run_ranks(n, [&](comm::ProcessGroup& group) {
        nn::Sequential model = converted(testing::seeded(3, net), DType::f64),
                       plain = converted(testing::seeded(3, net), DType::f64);
        const FullySharded sharded = cut(model, group, {.reshard_after_forward = reshard});
        optim::SGD sgd(model.parameters(), {.lr = 0.1, .momentum = 0.9});
        optim::SGD plain_sgd(plain.parameters(), {.lr = 0.1, .momentum = 0.9});
        for (int i = 0; i < 100; ++i) {
          const auto data = batch(i, {12, 6}, DType::f64);
          step(model, sgd, data.shard(group.rank(), n));
          step(plain, plain_sgd, data);
        }
        expect_near(sharded.state_dict(), plain.state_dict(), 1e-9);
      });
    }
  }
}

// --- Ways to train -------------------------------------------------------------------------------

// With n ranks the steps of one process, in f64: `train(model, called, data, step)` runs forward
// and backward of a rank's part; afterwards the gradients are compared.
template <class Make, class Cut, class Train>
void expect_gradients_of_one_process(const Make& make, const Cut& cut_it, const Train& train) {
  for (int n = 1; n <= 3; ++n) {
    SCOPED_TRACE(n);
    comm::run_ranks(n, [&](comm::ProcessGroup& group) {
      auto model = testing::seeded(3, make), plain = testing::seeded(3, make);
      model.to(DType::f64);
      plain.to(DType::f64);
      const FullySharded sharded = cut_it(model, group);
      optim::SGD sgd(model.parameters(), {.lr = 0.1}), plain_sgd(plain.parameters(), {.lr = 0.1});
      for (int i = 0; i < 3; ++i) {
        sgd.zero_grad();
        plain_sgd.zero_grad();
        train(model, batch(i, {12, 6}, DType::f64).shard(group.rank(), n), &sharded);
        train(plain, batch(i, {12, 6}, DType::f64), nullptr);
        sgd.step();
        plain_sgd.step();
        expect_near(sharded.state_dict(), plain.state_dict(), 1e-12);
      }
    });
  }
}

FullySharded cut_net(nn::Sequential& model, comm::ProcessGroup& group) { return cut(model, group); }

TEST_F(FullyShardTest, SeveralForwardsBeforeABackward) {
  expect_gradients_of_one_process(
      net, cut_net,
      [](nn::Sequential& model, const testing::LabelledBatch& data, const FullySharded*) {
        const Tensor first = loss_of(model, data);
        const Tensor second = model(data.x * 0.5).square().mean();
        (first + second).backward();
      });
}

TEST_F(FullyShardTest, SeveralBackwardsBeforeAStep) {
  expect_gradients_of_one_process(
      net, cut_net,
      [](nn::Sequential& model, const testing::LabelledBatch& data, const FullySharded*) {
        const Tensor first = loss_of(model, data);
        const Tensor second = model(data.x * 0.5).square().mean();
        second.backward();
        first.backward();
      });
}

TEST_F(FullyShardTest, NoSyncAddsUpOnEachRank) {
  expect_gradients_of_one_process(
      net, cut_net,
      [](nn::Sequential& model, const testing::LabelledBatch& data, const FullySharded* sharded) {
        if (sharded) {
          const auto before = sharded->traffic().bytes_sent;
          const auto no_sync = sharded->no_sync();
          loss_of(model, data).backward();
          EXPECT_FALSE(model.parameters()[0].grad().defined());
          const auto gathered = sharded->traffic().bytes_sent - before;
          loss_of(model, data).backward();
          EXPECT_EQ(sharded->traffic().bytes_sent - before, 2 * gathered);
        } else {
          for (int i = 0; i < 2; ++i) loss_of(model, data).backward();
        }
        (loss_of(model, data) * 0.5).backward();
      });
}

struct Block : nn::Module<Block> {
  nn::Linear in = child("in", nn::Linear(6, 8));
  nn::Linear out = child("out", nn::Linear(8, 6));
  Tensor forward(const Tensor& x) { return x + out(tanh(in(x))); }
};

/// Blocks that are checkpointed as a whole, or in two parts.
struct Blocks : nn::Module<Blocks> {
  Block a = child("a", Block());
  Block b = child("b", Block());
  nn::Linear head = child("head", nn::Linear(6, 3));
  Tensor forward(const Tensor& x) {
    const Tensor y = autograd::checkpoint([this](const Tensor& z) { return a(z); }, x);
    const Tensor half = autograd::checkpoint([this](const Tensor& z) { return tanh(b.in(z)); }, y);
    return head(autograd::checkpoint([this](const Tensor& z) { return b.out(z); }, half));
  }
};

template <class F>
FullySharded cut_children(nn::ModuleBase& model, comm::ProcessGroup& group, const F& wanted) {
  model.apply([&](nn::ModuleBase& m) {
    if (wanted(m.name())) fully_shard(m, group);
  });
  return fully_shard(model, group);
}

TEST_F(FullyShardTest, Checkpoints) {
  expect_gradients_of_one_process(
      [] { return Blocks(); },
      [](Blocks& model, comm::ProcessGroup& group) {
        return cut_children(model, group, [](const std::string& name) { return name == "a"; });
      },
      [](Blocks& model, const testing::LabelledBatch& data, const FullySharded*) {
        loss_of(model, data).backward();
      });
}

/// A checkpoint within a unit that is itself within one, calls of a unit in and beside checkpoints,
/// and a loss that uses weights.
struct Nested : nn::Module<Nested> {
  struct Inner : nn::Module<Inner> {
    nn::Linear first = child("first", nn::Linear(6, 6));
    nn::Linear second = child("second", nn::Linear(6, 6));
    Tensor forward(const Tensor& x) {
      const Tensor y = tanh(first(x));
      return autograd::checkpoint([this](const Tensor& z) { return tanh(second(z)); }, y);
    }
  };
  Inner a = child("a", Inner());
  Inner b = child("b", Inner());
  nn::Linear head = child("head", nn::Linear(6, 3));
  Tensor forward(const Tensor& x) {
    Tensor y = a(x * 1.0);
    y = autograd::checkpoint([this](const Tensor& z) { return b(z); }, y);
    y = autograd::checkpoint([this](const Tensor& z) { return a(z); }, y);
    return head(b(y));
  }
};

TEST_F(FullyShardTest, CheckpointsWithinAndBesideEachOther) {
  for (const bool penalised : {false, true}) {
    expect_gradients_of_one_process(
        [] { return Nested(); },
        [](Nested& model, comm::ProcessGroup& group) {
          return cut_children(model, group,
                              [](const std::string& name) { return name == "a" || name == "b"; });
        },
        [&](Nested& model, const testing::LabelledBatch& data, const FullySharded* sharded) {
          Tensor loss = loss_of(model, data);
          if (penalised) {
            if (sharded) sharded->unshard();
            loss = loss + (model.a.first.weight * model.b.second.weight).square().sum() * 0.01;
          }
          loss.backward();
        });
  }
}

// The units' numbers go through sums of bf16, which keeps eight bits.
TEST_F(FullyShardTest, ManyUnitsInBf16OnSevenRanks) {
  comm::run_ranks(7, [&](comm::ProcessGroup& group) {
    nn::Sequential model;
    for (int i = 0; i < 150; ++i) model.append(nn::Linear(2, 2));
    model.to(DType::bf16);
    const FullySharded sharded =
        cut_children(model, group, [](const std::string& name) { return !name.empty(); });
    for (int i = 0; i < 2; ++i) {
      model.zero_grad();
      model(full({1, 2}, 1.0).to(DType::bf16)).sum().backward();
    }
    EXPECT_EQ(sharded.units().size(), 150u);
  });
}

TEST_F(FullyShardTest, TwoBackwardsOverOneTape) {
  expect_gradients_of_one_process(
      net, cut_net,
      [](nn::Sequential& model, const testing::LabelledBatch& data, const FullySharded*) {
        const Tensor loss = loss_of(model, data);
        loss.backward({}, /*retain_graph=*/true);
        loss.backward();
      });
}

TEST_F(FullyShardTest, CallsOfInnerModulesAndShorterSteps) {
  expect_gradients_of_one_process(
      [] { return Blocks(); },
      [](Blocks& model, comm::ProcessGroup& group) {
        const FullySharded sharded = cut_children(
            model, group, [](const std::string& name) { return name == "a" || name == "head"; });
        sharded.units();  // says that this module is the outermost one, before `a` is called
        return sharded;
      },
      [](Blocks& model, const testing::LabelledBatch& data, const FullySharded* sharded) {
        // Each step begins like the one before and then goes another way.
        if (sharded) {
          const NoGrad no_grad;
          model.a(data.x);
        }
        (loss_of(model, data) + model.head(model.a(data.x)).square().mean()).backward();
      });
}

TEST_F(FullyShardTest, FrozenAndUnfrozenBetweenSteps) {
  const auto train = [](nn::Sequential& model, optim::Optimizer& sgd, int rank, int n) {
    for (int i = 0; i < 6; ++i) {
      std::vector<Tensor> parameters = model.parameters();
      for (std::size_t p = 0; p < 2; ++p) parameters[p].set_requires_grad(i / 2 % 2 == 0);
      step(model, sgd, batch(i, {12, 6}, DType::f64).shard(rank, n));
      EXPECT_EQ(parameters[0].grad().defined(), i / 2 % 2 == 0);
    }
  };
  nn::Sequential plain = converted(testing::seeded(3, net), DType::f64);
  optim::SGD plain_sgd(plain.parameters(), {.lr = 0.1});
  train(plain, plain_sgd, 0, 1);
  comm::run_ranks(2, [&](comm::ProcessGroup& group) {
    nn::Sequential model = converted(testing::seeded(3, net), DType::f64);
    const FullySharded sharded = cut(model, group);
    optim::SGD sgd(model.parameters(), {.lr = 0.1});
    train(model, sgd, group.rank(), 2);
    expect_near(sharded.state_dict(), plain.state_dict(), 1e-12);
  });
}

TEST_F(FullyShardTest, FrozenParametersGetNoGradientsAnyMore) {
  comm::run_ranks(2, [&](comm::ProcessGroup& group) {
    nn::Linear model(3, 4);
    fully_shard(model, group);
    const Tensor x = full({2, 3}, 1.0);
    model(x).sum().backward();
    model.parameters()[0].set_requires_grad(false);
    model.zero_grad();
    const Tensor y = model(x);
    EXPECT_FALSE(model.weight.requires_grad());
    EXPECT_TRUE(model.bias.requires_grad());
    y.sum().backward();
    EXPECT_FALSE(model.parameters()[0].grad().defined());
    EXPECT_TRUE(model.parameters()[1].grad().defined());
  });
}

/// Its weight is used by the loss, too.
struct Penalised : nn::Module<Penalised> {
  nn::Linear fc = child("fc", nn::Linear(6, 3));
  Tensor forward(const Tensor& x) { return fc(x); }
};

TEST_F(FullyShardTest, ALossMayUseParametersThatAreUnsharded) {
  expect_gradients_of_one_process(
      [] { return Penalised(); },
      [](Penalised& model, comm::ProcessGroup& group) { return fully_shard(model, group); },
      [](Penalised& model, const testing::LabelledBatch& data, const FullySharded* sharded) {
        if (sharded) sharded->unshard();
        const Tensor penalty = model.fc.weight.square().sum();
        (loss_of(model, data) + penalty * 0.01).backward();
        if (!sharded) return;
        EXPECT_WEFT_ERROR(model.fc.weight.sum(), InvalidArgument, "unshard() gathers it");
        {
          const NoGrad no_grad;
          model(data.x);
        }
        EXPECT_WEFT_ERROR(model.fc.weight.sum(), InvalidArgument, "unshard() gathers it");
        sharded->unshard();
        EXPECT_EQ(model.fc.weight.sum().shape(), Shape());
        sharded->reshard();
        EXPECT_WEFT_ERROR(model.fc.weight.sum(), InvalidArgument, "unshard() gathers it");
      });
}

/// Its result hides the tensor from hooks.
struct Hidden {
  Tensor y;
};
struct HidesItsResult : nn::Module<HidesItsResult> {
  nn::Linear fc = child("fc", nn::Linear(6, 3));
  Hidden forward(const Tensor& x) { return {fc(x)}; }
};

TEST_F(FullyShardTest, AResultThatCannotBeWalkedOfTheOutermostModule) {
  expect_gradients_of_one_process(
      [] { return HidesItsResult(); },
      [](HidesItsResult& model, comm::ProcessGroup& group) { return fully_shard(model, group); },
      [](HidesItsResult& model, const testing::LabelledBatch& data, const FullySharded*) {
        nn::cross_entropy(model(data.x).y, data.label).backward();
      });
}

nn::Sequential tied_and_frozen() {
  nn::Linear tied(6, 6), frozen(6, 6);
  frozen.requires_grad(false);
  return {nn::Sequential{tied, nn::Tanh(), tied}, nn::Sequential{frozen, nn::Tanh()},
          nn::Linear(6, 3)};
}

TEST_F(FullyShardTest, TiedAndFrozenParameters) {
  expect_gradients_of_one_process(
      tied_and_frozen,
      [](nn::Sequential& model, comm::ProcessGroup& group) {
        return cut_children(model, group,
                            [](const std::string& name) { return name == "0" || name == "1"; });
      },
      [](nn::Sequential& model, const testing::LabelledBatch& data, const FullySharded*) {
        loss_of(model, data).backward();
        EXPECT_FALSE(model.parameters()[2].grad().defined());
      });
}

TEST_F(FullyShardTest, ClipsByTheNormOfAllRanks) {
  expect_gradients_of_one_process(
      net, cut_net,
      [](nn::Sequential& model, const testing::LabelledBatch& data, const FullySharded* sharded) {
        loss_of(model, data).backward();
        const Tensor norm =
            sharded ? sharded->clip_grad_norm(0.1) : optim::clip_grad_norm(model.parameters(), 0.1);
        EXPECT_GT(norm.item<double>(), 0.1);
      });
}

// --- Values from outside -------------------------------------------------------------------------

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
  comm::run_ranks(2, [&](comm::ProcessGroup& group) {
    nn::Sequential model = testing::seeded(3, net);
    cut(model, group);
    optim::SGD sgd(model.parameters(), {.lr = 0.1});
    const auto data = batch(0, {12, 6}, DType::f32).shard(group.rank(), 2);
    step(model, sgd, data);
    const Tensor loss = loss_of(model, data);
    sgd.step();
    EXPECT_WEFT_ERROR(loss.backward(), InvalidArgument, "in place");
  });
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

// Moments of the parts, on ranks of which some have no row of the last layer.
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
    // A large eps: of gradients that are rounding errors Adam makes whole steps.
    return optim::AdamW(m.parameters(), {.lr = 0.01, .eps = 1e-3, .amsgrad = true});
  });
  expect_goes_on([](nn::Sequential& m) {
    return optim::RMSprop(m.parameters(), {.lr = 0.01, .eps = 1e-3, .centered = true});
  });
}

// --- Other numbers and layouts -------------------------------------------------------------------

// What is kept of a weight for mixed precision must not outlive its values.
TEST_F(FullyShardTest, MixedPrecisionIsDdpsBitForBit) {
  comm::run_ranks(2, [&](comm::ProcessGroup& group) {
    nn::Sequential model = testing::seeded(3, net), plain = testing::seeded(3, net);
    const FullySharded sharded = cut(model, group);
    DistributedDataParallel ddp(plain, group);
    optim::SGD sgd(model.parameters(), {.lr = 0.1}), plain_sgd(plain.parameters(), {.lr = 0.1});
    for (int i = 0; i < 5; ++i) {
      const auto data = batch(i, {12, 6}, DType::f32).shard(group.rank(), 2);
      const autograd::Autocast autocast(DeviceType::cpu);
      step(model, sgd, data);
      step(ddp, plain_sgd, data);
      expect_same(sharded.state_dict(), plain.state_dict());
    }
  });
}

// Batch norm's statistics are rank 0's in each forward.
TEST_F(FullyShardTest, ImagesAndBuffersAreDdpsBitForBit) {
  const auto make = [] {
    return nn::Sequential{nn::Conv2d(1, 4, 3, {.padding = 1}),
                          nn::BatchNorm2d(4),
                          nn::ReLU(),
                          nn::MaxPool2d(2),
                          nn::Flatten(),
                          nn::Linear(64, 3)};
  };
  comm::run_ranks(2, [&](comm::ProcessGroup& group) {
    nn::Sequential model = testing::seeded(3, make), plain = testing::seeded(3, make);
    const FullySharded sharded = fully_shard(model, group);
    DistributedDataParallel ddp(plain, group);
    optim::SGD sgd(model.parameters(), {.lr = 0.1}), plain_sgd(plain.parameters(), {.lr = 0.1});
    for (int i = 0; i < 5; ++i) {
      const auto data = batch(i, {12, 1, 8, 8}, DType::f32).shard(group.rank(), 2);
      step(model, sgd, data);
      step(ddp, plain_sgd, data);
      expect_same(sharded.state_dict(), plain.state_dict());
    }
  });
}

/// A weight whose first dimension is innermost in memory, and one of channels last.
struct OddLayouts : nn::Module<OddLayouts> {
  nn::Parameter turned = parameter("turned", raw::permute(uniform({5, 6}, -1, 1), {1, 0}));
  nn::Parameter image = parameter("image", [] {
    TensorOptions options;
    options.channels_last = true;
    const Tensor x = empty({3, 2, 2, 2}, options);
    raw::uniform_(x, -1, 1);
    return x;
  }());
  Tensor forward(const Tensor& x) const {
    return matmul(x, turned).sum() + (image * image).sum() * x.mean();
  }
};

TEST_F(FullyShardTest, ParametersInAnyOrderOfDimensions) {
  for (int n = 1; n <= 4; ++n) {
    comm::run_ranks(n, [&](comm::ProcessGroup& group) {
      const auto make = [] { return OddLayouts(); };
      OddLayouts model = testing::seeded(3, make), plain = testing::seeded(3, make);
      const Strides turned = plain.turned.strides(), image = plain.image.strides();
      const FullySharded sharded = fully_shard(model, group);
      optim::SGD sgd(model.parameters(), {.lr = 0.1}), plain_sgd(plain.parameters(), {.lr = 0.1});
      for (int i = 0; i < 3; ++i) {
        const Tensor x = batch(i, {4, 6}, DType::f32).x;  // the same on all ranks
        sgd.zero_grad();
        plain_sgd.zero_grad();
        model(x).backward();
        EXPECT_EQ(model.turned.strides(), turned);
        EXPECT_EQ(model.image.strides(), image);
        plain(x).backward();
        sgd.step();
        plain_sgd.step();
        expect_near(sharded.state_dict(), plain.state_dict(), 1e-6);
      }
    });
  }
}

// --- Mistakes ------------------------------------------------------------------------------------

TEST_F(FullyShardTest, RefusesWhatItCannotDo) {
  comm::run_ranks(2, [&](comm::ProcessGroup& group) {
    nn::Sequential model = net();
    nn::Linear alone(4, 4);
    nn::Linear handle = alone;
    optim::SGD before(alone.parameters(), {.lr = 0.1});
    fully_shard(alone, group);
    EXPECT_WEFT_ERROR(before.step(), InvalidArgument,
                      "parameter 0 [4,4] was cut (parallel::fully_shard) after this optimiser");
    cut(model, group);
    EXPECT_WEFT_ERROR(nn::clone(model), Unsupported, "[clone] Linear's weight is cut into parts");
    EXPECT_WEFT_ERROR(nn::replicate(model, Device(DeviceType::cpu, 0)), Unsupported,
                      "cut into parts");
    EXPECT_WEFT_ERROR(model.to(DType::f64), Unsupported, "[to] Linear's weight is cut into parts");
    EXPECT_WEFT_ERROR(model.to(Device()), Unsupported, "do this before the module is cut");
    EXPECT_WEFT_ERROR(handle.weight.sum(), InvalidArgument,
                      "this is a parameter of Linear that fully_shard has cut");
    EXPECT_WEFT_ERROR(handle.forward(zeros({1, 4})), InvalidArgument, "module(x)");

    struct Scalar : nn::Module<Scalar> {
      nn::Parameter scale = parameter("scale", scalar(1));
    };
    EXPECT_WEFT_ERROR(fully_shard(Scalar(), group), InvalidArgument,
                      "scale has no dimension along which it could be cut");
    nn::Linear half(2, 2);
    half.to(DType::bf16);
    EXPECT_WEFT_ERROR(fully_shard(nn::Sequential{nn::Linear(2, 2), half}, group), InvalidArgument,
                      "1.weight is bf16 on cpu:0, 0.weight is f32 on cpu:0");
    struct Tied : nn::Module<Tied> {
      nn::Linear a = child("a", nn::Linear(4, 4));
      nn::Parameter b = parameter("b", a.weight);
    } tied;
    fully_shard(tied.a, group);
    EXPECT_WEFT_ERROR(fully_shard(tied, group), InvalidArgument,
                      "b is shared with a module that has been cut");
    EXPECT_WEFT_ERROR(
        fully_shard(nn::Linear(2 + group.rank(), 2), group), InvalidArgument,
        "rank 1 cuts another module than rank 0: it has \"parameter weight f32 [2,3]");
    EXPECT_WEFT_ERROR(fully_shard(nn::Linear(2, 2), nullptr), InvalidArgument, "no process group");
  });
}

/// Returns what its first layer makes, too.
struct Parts : nn::Module<Parts> {
  nn::Linear a = child("a", nn::Linear(4, 4));
  nn::Linear b = child("b", nn::Linear(4, 4));
  std::pair<Tensor, Tensor> forward(const Tensor& x) {
    const Tensor half = a(x);
    return {half, b(half)};
  }
};

TEST_F(FullyShardTest, AUnitThatOneBackwardDoesNotReachIsNamed) {
  comm::run_ranks(2, [&](comm::ProcessGroup& group) {
    Parts model = testing::seeded(3, [] { return Parts(); });
    for (nn::ModuleBase part : {nn::ModuleBase(model.a), nn::ModuleBase(model.b)}) {
      fully_shard(part, group, {.reshard_after_forward = false});
    }
    const FullySharded sharded = fully_shard(model, group);
    for (int i = 0; i < 2; ++i) {
      model.zero_grad();
      const auto [half, whole] = model(full({2, 4}, 1.0));
      if (group.rank() == 1) {
        EXPECT_WEFT_ERROR(
            half.sum().backward(), InvalidArgument,
            "rank 1: the parameters of 1 of 2 units got no gradient in this backward: "
            "b. The other ranks took zeros for them");
      } else {
        whole.sum().backward();
      }
      // A half of rank 0's.
      EXPECT_EQ(model.b.bias.grad().defined(), false);
      EXPECT_EQ(model.named_parameters()[3].second.grad().to_vector<float>(),
                (std::vector<float>{1, 1}));
    }
  });
}

// Rank 0 gathers b for its backward, and rank 1 a, of the same size.
TEST_F(FullyShardTest, RanksAtDifferentModulesGetComm) {
  EXPECT_WEFT_ERROR(comm::run_ranks(2,
                                    [&](comm::ProcessGroup& group) {
                                      Parts model = testing::seeded(3, [] { return Parts(); });
                                      fully_shard(model.a, group);
                                      fully_shard(model.b, group);
                                      fully_shard(model, group);
                                      const auto [half, whole] = model(full({2, 4}, 1.0));
                                      EXPECT_WEFT_ERROR(
                                          (group.rank() == 1 ? half : whole).sum().backward(), Comm,
                                          "the ranks are at different modules");
                                      model(full({2, 4}, 1.0));
                                    }),
                    Comm, "this group has ended");
}

TEST_F(FullyShardTest, RefusesAnotherEngineAroundItAndAWrongOrder) {
  comm::run_ranks(2, [&](comm::ProcessGroup& group) {
    nn::Sequential model = net();
    cut(model, group);
    EXPECT_WEFT_ERROR(DistributedDataParallel(model, group), InvalidArgument,
                      "averages its gradients by itself");
    EXPECT_WEFT_ERROR(fully_shard(model, group), InvalidArgument, "Sequential was cut before");
    nn::Sequential whole = net();
    fully_shard(whole, group);
    whole.apply([&](nn::ModuleBase& m) {
      if (m.name() == "2") {
        EXPECT_WEFT_ERROR(fully_shard(m, group), InvalidArgument,
                          "2 belongs to Sequential, which was cut before: cut inner modules first");
      }
    });
    EXPECT_WEFT_ERROR(
        fully_shard(nn::Linear(2, 2), group, {.reshard_after_forward = group.rank() == 0}),
        InvalidArgument, "reshard_after_forward 0");
    Parts early;
    fully_shard(early.a, group);
    early.a(full({2, 4}, 1.0));
    const FullySharded late = fully_shard(early, group);
    EXPECT_WEFT_ERROR(early(full({2, 4}, 1.0)), InvalidArgument,
                      "which is part of Parts, was called before it");
  });
}

TEST_F(FullyShardTest, SecondDerivativesAreRefused) {
  comm::run_ranks(2, [&](comm::ProcessGroup& group) {
    nn::Sequential model = net();
    cut(model, group);
    const Tensor loss = model(full({2, 6}, 1.0)).square().sum();
    EXPECT_WEFT_ERROR(loss.backward({}, true, /*create_graph=*/true), Unsupported,
                      "create_graph, of a module that is cut");
  });
}

TEST_F(FullyShardTest, TheTapeOutlivesTheModule) {
  comm::run_ranks(2, [&](comm::ProcessGroup& group) {
    Tensor loss;
    {
      nn::Sequential model = testing::seeded(3, net);
      cut(model, group);
      loss = loss_of(model, batch(group.rank(), {4, 6}, DType::f32));
    }
    loss.backward();  // the units live as long as the tape
  });
}

TEST_F(FullyShardTest, OneProcessGoesOnAfterAnError) {
  comm::run_ranks(1, [&](comm::ProcessGroup& group) {
    nn::Sequential model = testing::seeded(3, net);
    cut(model, group);
    const auto data = batch(0, {4, 6}, DType::f32);
    const Tensor y = model(data.x);
    autograd::add_grad_hook(y, [](const Tensor&) -> Tensor { throw std::runtime_error("mine"); });
    EXPECT_THROW(y.sum().backward(), std::exception);
    EXPECT_FALSE(model.parameters()[0].grad().defined());
    loss_of(model, data).backward();
    EXPECT_TRUE(model.parameters()[0].grad().defined());
  });
}

// --- Memory and traffic --------------------------------------------------------------------------

std::int64_t bytes_of(const std::vector<Tensor>& tensors) {
  std::int64_t sum = 0;
  for (const Tensor& x : tensors) sum += x.numel() * static_cast<std::int64_t>(size_of(x.dtype()));
  return sum;
}

// Eight equal units, and a root of two small layers. All divide by 4.
constexpr std::int64_t kWidth = 64;
constexpr std::int64_t kRootBytes = 4 * (8 * kWidth + kWidth + kWidth * 4 + 4);
struct Tower : nn::Module<Tower> {
  nn::Linear in = child("in", nn::Linear(8, kWidth));
  nn::ModuleList<nn::Sequential> blocks = child("blocks", nn::ModuleList<nn::Sequential>());
  nn::Linear out = child("out", nn::Linear(kWidth, 4));
  bool checkpoints;

  explicit Tower(bool with_checkpoints) : checkpoints(with_checkpoints) {
    for (int i = 0; i < 8; ++i) {
      blocks.append({nn::Linear(kWidth, 4 * kWidth), nn::Tanh(), nn::Linear(4 * kWidth, kWidth)});
    }
  }
  Tensor forward(const Tensor& x) {
    Tensor y = in(x);
    for (nn::Sequential& block : blocks) {
      y = checkpoints
              ? autograd::checkpoint([block](const Tensor& z) mutable { return block(z); }, y)
              : block(y);
    }
    return out(y);
  }
};
FullySharded cut_blocks(Tower& model, comm::ProcessGroup& group,
                        const FullyShardOptions& options = {}) {
  for (nn::Sequential& block : model.blocks) fully_shard(block, group, options);
  return fully_shard(model, group, options);
}

TEST_F(FullyShardTest, AStepSendsAThirdMoreThanDdpAtMost) {
  for (const char* const backend : {"ring", "shm"}) {
    for (const auto& [reshard, root_too] :
         {std::pair(std::optional<bool>(), false), {true, true}, {false, false}}) {
      for (const auto& [n, checkpoints] : {std::pair(2, false), {4, false}, {2, true}}) {
        SCOPED_TRACE(::testing::Message()
                     << backend << ' ' << n << ' ' << reshard.value_or(true) << ' ' << checkpoints);
        std::atomic<std::int64_t> sent = 0;
        std::int64_t expected = 0;
        const bool recomputes = checkpoints;
        const int ranks = n;
        comm::testing::in_groups(
            backend, n, [&, reshard = reshard, root_too = root_too](comm::ProcessGroup& group) {
              Tower model = testing::seeded(3, [&] { return Tower(recomputes); });
              const std::int64_t all = bytes_of(model.parameters());
              const FullySharded sharded =
                  cut_blocks(model, group, {.reshard_after_forward = reshard});
              const Tensor x = uniform({4, 8}, -1, 1);
              std::int64_t before = 0;
              for (int i = 0; i < 3; ++i) {  // the first one finds the order
                before = sharded.traffic().bytes_sent;
                model.zero_grad();
                model(x).sum().backward();
              }
              sent += sharded.traffic().bytes_sent - before;
              if (group.rank() != 0) return;
              const bool frees = recomputes || reshard.value_or(true);
              const std::int64_t root = frees && !root_too ? kRootBytes : 0;
              expected = (ranks - 1) * ((frees ? 3 : 2) * all - root);
              // The units' numbers, of 8 bytes: one in a gather, one for each rank in a reduction.
              const std::int64_t gathers = 9 + (frees ? 8 : 0) + (root_too ? 1 : 0);
              expected += 8 * ranks * (ranks - 1) * (gathers + 9 * ranks);
            });
        // shm counts what a ring would send, rounded down.
        EXPECT_NEAR(static_cast<double>(sent), static_cast<double>(expected), 8 * 27 * n);
      }
    }
  }
}

TEST(FullyShardMemoryTest, ARankHasItsPartAndAFewUnits) {
  set_host_devices(4);
  for (const auto& [n, checkpoints] :
       {std::pair(1, false), {2, false}, {4, false}, {2, true}, {4, true}}) {
    SCOPED_TRACE(::testing::Message() << n << ' ' << checkpoints);
    comm::run_ranks(n, [&, n = n, recomputes = checkpoints](comm::ProcessGroup& group) {
      const Device device(DeviceType::cpu, group.rank());
      const auto most = [&](MemoryOwner owner) {
        return memory_stats(device).most_by_owner[static_cast<std::size_t>(owner)];
      };
      Tower model = testing::seeded(3, [&] { return Tower(recomputes); });
      model.to(device);
      const std::int64_t all = bytes_of(model.parameters());
      const std::int64_t of_root = kRootBytes, of_block = (all - of_root) / 8;
      cut_blocks(model, group);
      optim::Adam adam(model.parameters());
      const Tensor x = uniform({1, 8}, -1, 1).to(device);
      for (int i = 0; i < 2; ++i) {
        reset_peak_memory(device);
        adam.zero_grad();
        model(x).sum().backward();
        adam.step();
      }
      // Blocks of the allocator are multiples of 512 bytes.
      constexpr std::int64_t kRounding = 16 * 512;
      EXPECT_LE(most(MemoryOwner::parameters), all / n + kRounding);
      EXPECT_LE(most(MemoryOwner::optimizer), 2 * all / n + 2 * kRounding);
      EXPECT_LE(most(MemoryOwner::whole_parameters), of_root + 2 * of_block + kRounding);
      EXPECT_LE(most(MemoryOwner::communication), 2 * of_block + kRounding);
      EXPECT_LE(most(MemoryOwner::gradients),
                all / n + of_root + of_block + of_block / n + kRounding);
      EXPECT_GT(most(MemoryOwner::whole_parameters), 0);
      EXPECT_GT(most(MemoryOwner::communication), 0);
    });
  }
}

}  // namespace
}  // namespace weft::parallel
