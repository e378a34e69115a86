// fully_shard: that it trains as DistributedDataParallel and one process do, in all the ways in
// which one trains.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/autograd/autocast.h"
#include "weft/autograd/checkpoint.h"
#include "weft/comm/mesh.h"
#include "weft/nn/batch_norm.h"
#include "weft/nn/ema.h"
#include "weft/nn/summary.h"
#include "weft/optim/adam.h"
#include "weft/optim/sgd.h"
#include "weft/parallel/distributed_data_parallel.h"
#include "weft/tensor/elementwise.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/core/sanitized.h"
#include "weft/tests/parallel/sharded_nets.h"

namespace weft::parallel {
namespace {

using testing::batch;
using testing::loss_of;

// A sanitizer makes the plain f64 loops about ten times slower; a few steps cover all the code.
constexpr int kSteps = testing::kSanitized ? 3 : 100;

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

// Replicas x ranks that share a model: the mean is over all of them.
TEST_F(FullyShardTest, ReplicasAreOneProcessWithTheWholeBatch) {
  for (const auto& [replicas, shards] : {std::pair(2, 2), {2, 1}, {1, 2}, {3, 1}, {2, 3}}) {
    SCOPED_TRACE(::testing::Message() << replicas << ' ' << shards);
    const int n = replicas * shards;
    comm::run_ranks(n, [&, replicas = replicas, shards = shards](comm::ProcessGroup& group) {
      const comm::Mesh mesh(std::shared_ptr<comm::ProcessGroup>(std::shared_ptr<void>(), &group),
                            {{"replica", replicas}, {"shard", shards}});
      const auto make = [] { return converted(net(), DType::f64); };
      nn::Sequential model = testing::seeded(3 + static_cast<std::uint64_t>(group.rank()), make);
      nn::Sequential plain = testing::seeded(3, make);
      const FullyShardOptions options{.replicas = mesh["replica"]};
      model.apply([&](nn::ModuleBase& m) {
        if (m.name() == "0" || m.name() == "2") fully_shard(m, mesh["shard"], options);
      });
      const FullySharded sharded = fully_shard(model, mesh["shard"], options);
      optim::Adam adam(model.parameters(), {.lr = 0.01});
      optim::Adam plain_adam(plain.parameters(), {.lr = 0.01});
      for (int i = 0; i < kSteps; ++i) {
        const auto data = batch(i, {12, 6}, DType::f64);
        step(model, adam, data.shard(group.rank(), n));
        step(plain, plain_adam, data);
      }
      expect_near(sharded.state_dict(), plain.state_dict(), 1e-9);
      loss_of(model, batch(9, {12, 6}, DType::f64).shard(group.rank(), n)).backward();
      loss_of(plain, batch(9, {12, 6}, DType::f64)).backward();
      const double norm = optim::clip_grad_norm(plain.parameters(), 1).item<double>();
      EXPECT_NEAR(sharded.clip_grad_norm(1).item<double>(), norm, 1e-9);
      EXPECT_EQ(sharded.traffic().bytes_sent > 0, n > 1);
    });
  }
}

// Replicas with other buffers take rank 0's; other replicas than those of rank 0 are refused.
TEST_F(FullyShardTest, ReplicasHaveTheSameBuffers) {
  comm::run_ranks(4, [](comm::ProcessGroup& group) {
    const comm::Mesh mesh(std::shared_ptr<comm::ProcessGroup>(std::shared_ptr<void>(), &group),
                          {{"replica", 2}, {"shard", 2}});
    nn::Sequential model{nn::Linear(6, 4), nn::BatchNorm1d(4), nn::Linear(4, 3)};
    fully_shard(model, mesh["shard"], {.replicas = mesh["replica"]});
    const auto means = [&] {
      std::string text;
      for (const auto& [name, x] : model.named_buffers()) text += weft::to_string(x.sum());
      return group.all_gather_object(text);
    };
    for (int i = 0; i < 2; ++i) {
      loss_of(model, batch(i, {8, 6}, DType::f32).shard(group.rank(), 4)).backward();
    }
    const NoGrad no_grad;
    model.eval();
    std::vector<std::string> all = means();
    EXPECT_NE(all[0], all[3]);  // each rank's statistics are of its own batch
    model.train();
    const EnableGrad grad;
    model(zeros({2, 6}));  // takes rank 0's first; the batch is the same
    all = means();
    for (const std::string& one : all) EXPECT_EQ(one, all[0]);
    nn::Linear other(2, 2);
    EXPECT_WEFT_ERROR(fully_shard(other, mesh["shard"],
                                  {.reshard_after_forward = mesh.coordinate("replica") == 0,
                                   .replicas = mesh["replica"]}),
                      InvalidArgument, " cuts another module than rank ");
  });
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
        for (int i = 0; i < kSteps; ++i) {
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

// With n ranks the steps of one process, in f64: `train(model, data, sharded)` runs forward and
// backward of a rank's part. Differences of rounding are larger after many steps.
template <class Make, class Cut, class Train>
void expect_gradients_of_one_process(const Make& make, const Cut& cut_it, const Train& train) {
  for (int n = 1; n <= 4; ++n) {
    SCOPED_TRACE(n);
    comm::run_ranks(n, [&](comm::ProcessGroup& group) {
      auto model = testing::seeded(3, make), plain = testing::seeded(3, make);
      model.to(DType::f64);
      plain.to(DType::f64);
      const FullySharded sharded = cut_it(model, group);
      optim::SGD sgd(model.parameters(), {.lr = 0.1}), plain_sgd(plain.parameters(), {.lr = 0.1});
      for (int i = 0; i < kSteps; ++i) {
        sgd.zero_grad();
        plain_sgd.zero_grad();
        train(model, batch(i, {12, 6}, DType::f64).shard(group.rank(), n), &sharded);
        train(plain, batch(i, {12, 6}, DType::f64), nullptr);
        sgd.step();
        plain_sgd.step();
        if (i < 3) expect_near(sharded.state_dict(), plain.state_dict(), 1e-12);
      }
      expect_near(sharded.state_dict(), plain.state_dict(), 1e-9);
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

TEST_F(FullyShardTest, HooksFromBeforeTheCutGetWholeGradients) {
  expect_gradients_of_one_process(
      [] {
        nn::Sequential model = net();
        for (const Tensor& x : model.parameters()) {
          autograd::add_grad_hook(x, [shape = x.shape()](const Tensor& gradient) {
            EXPECT_EQ(gradient.shape(), shape);
            return raw::mul(gradient, 2.0);
          });
        }
        return model;
      },
      cut_net,
      [](nn::Sequential& model, const testing::LabelledBatch& data, const FullySharded*) {
        loss_of(model, data).backward();
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

// A whole unit, or a part of one.
TEST_F(FullyShardTest, FreezingKeepsTheGradientsOfNoSync) {
  for (const std::size_t frozen : {2, 1}) {  // of the unit "0", which has two parameters
    const auto train = [&](nn::Sequential& model, optim::Optimizer& sgd, int rank, int n,
                           const FullySharded* sharded) {
      std::vector<Tensor> parameters = model.parameters();
      for (int i = 0; i < 4; ++i) {
        const auto data = batch(i, {12, 6}, DType::f64).shard(rank, n);
        sgd.zero_grad();
        if (sharded) {
          const auto no_sync = sharded->no_sync();
          loss_of(model, data).backward();
        } else {
          loss_of(model, data).backward();
        }
        for (std::size_t p = 0; p < frozen; ++p) parameters[p].set_requires_grad(i % 2 != 0);
        loss_of(model, data).backward();
        EXPECT_TRUE(parameters[0].grad().defined());
        sgd.step();
      }
    };
    nn::Sequential plain = converted(testing::seeded(3, net), DType::f64);
    optim::SGD plain_sgd(plain.parameters(), {.lr = 0.1});
    train(plain, plain_sgd, 0, 1, nullptr);
    comm::run_ranks(2, [&](comm::ProcessGroup& group) {
      nn::Sequential model = converted(testing::seeded(3, net), DType::f64);
      const FullySharded sharded = cut(model, group);
      optim::SGD sgd(model.parameters(), {.lr = 0.1});
      train(model, sgd, group.rank(), 2, &sharded);
      expect_near(sharded.state_dict(), plain.state_dict(), 1e-12);
    });
  }
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

TEST_F(FullyShardTest, AveragesAreThoseOfOneProcess) {
  for (int n = 1; n <= 4; ++n) {
    comm::run_ranks(n, [&](comm::ProcessGroup& group) {
      const auto make = [] { return converted(net(), DType::f64); };
      nn::Sequential model = testing::seeded(3, make), plain = testing::seeded(3, make);
      const FullySharded sharded = cut(model, group);
      optim::SGD sgd(model.parameters(), {.lr = 0.1}), plain_sgd(plain.parameters(), {.lr = 0.1});
      nn::ExponentialMovingAverage ema(model, 0.9), plain_ema(plain, 0.9);
      for (int i = 0; i < kSteps; ++i) {
        const auto data = batch(i, {12, 6}, DType::f64);
        step(model, sgd, data.shard(group.rank(), n));
        step(plain, plain_sgd, data);
        ema.update();
        plain_ema.update();
      }
      expect_near(sharded.state_of(ema).state_dict(), plain_ema.state_dict(), 1e-9);
      ema.apply();
      plain_ema.apply();
      expect_near(sharded.state_dict(), plain.state_dict(), 1e-9);
    });
  }
}

// For units that backward reaches: a gradient that a rank does not have counts as zeros.
TEST_F(FullyShardTest, AParameterWithoutAGradientCountsAsZeros) {
  struct Two : nn::Module<Two> {
    nn::Linear a = child("a", nn::Linear(4, 4));
    nn::Linear b = child("b", nn::Linear(4, 4));
    Tensor forward(const Tensor& x, bool both) { return both ? b(a(x)) : a(x); }
  };
  for (int n = 1; n <= 3; ++n) {
    comm::run_ranks(n, [&](comm::ProcessGroup& group) {
      Two model;
      fully_shard(model, group);
      for (const bool first_rank_too : {true, false}) {
        model.zero_grad();
        model(full({3, 4}, 1.0), first_rank_too && group.rank() == 0).sum().backward();
        const Tensor gradient = model.named_parameters()[3].second.grad();
        ASSERT_TRUE(gradient.defined());
        for (const float value : gradient.to_vector<float>()) {
          EXPECT_FLOAT_EQ(value, first_rank_too ? 3.0f / static_cast<float>(n) : 0);
        }
      }
    });
  }
}

TEST_F(FullyShardTest, ClipsByTheNormOfAllRanks) {
  expect_gradients_of_one_process(
      net, cut_net,
      [](nn::Sequential& model, const testing::LabelledBatch& data, const FullySharded* sharded) {
        loss_of(model, data).backward();
        const Tensor norm = sharded ? sharded->clip_grad_norm(0.05)
                                    : optim::clip_grad_norm(model.parameters(), 0.05);
        EXPECT_GT(norm.item<double>(), 0.05);
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

TEST_F(FullyShardTest, BuffersAreRankZerosAlsoInsideACheckpoint) {
  comm::run_ranks(2, [](comm::ProcessGroup& group) {
    nn::Sequential model{nn::BatchNorm2d(2), nn::Conv2d(2, 1, 1)};
    const FullySharded sharded = fully_shard(model, group);
    const auto& bn = *model[0].as<nn::BatchNorm2d>();
    raw::fill_(bn.running_var, group.rank() == 0 ? 2 : 4);
    const auto call = [&](const Tensor& x) { return model(x); };
    autograd::checkpoint(call, ones({2, 2, 2, 2}));
    // With momentum 0.1 and a batch variance of 0: 0.9 of the old value.
    EXPECT_FLOAT_EQ(bn.running_var.to_vector<float>()[0], 1.8f);
    EXPECT_EQ(bn.num_batches_tracked.item<std::int64_t>(), 1);
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

}  // namespace
}  // namespace weft::parallel
