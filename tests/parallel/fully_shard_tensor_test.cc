// fully_shard of what parallelize has cut: ranks of a mesh of two axes train as one process.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "weft/comm/mesh.h"
#include "weft/nn/ema.h"
#include "weft/nn/shard.h"
#include "weft/optim/adam.h"
#include "weft/optim/sgd.h"
#include "weft/parallel/fully_shard.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/parallel/sharded_nets.h"
#include "weft/tests/parallel/tensor_nets.h"

namespace weft::parallel {
namespace {

using testing::kWords;
using testing::loss_of_all;
using testing::loss_of_part;
using testing::Net;
using testing::plan_of;
using testing::text;

class FullyShardTensorTest : public FullyShardTest {};

Net small_net(double p = 0) {
  return testing::seeded(3, [&] { return Net(p); });
}

/// A net whose layers the ranks of "tp" share, and whose parts those of "dp" have cut.
struct Cut {
  Cut(comm::ProcessGroup& group, int dp, int tp, bool sequence, double p = 0,
      const FullyShardOptions& options = {})
      : mesh(std::shared_ptr<comm::ProcessGroup>(std::shared_ptr<void>(), &group),
             {{"dp", dp}, {"tp", tp}}),
        net(small_net(p)),
        layers(parallelize(net, *mesh["tp"], plan_of(sequence))),
        sharded([&] {
          for (testing::Block& block : net.blocks) fully_shard(block, mesh["dp"], options);
          return fully_shard(net, mesh["dp"], options);
        }()) {}

  /// This rank's rows.
  std::pair<Tensor, Tensor> own(const std::pair<Tensor, Tensor>& data) const {
    const int d = mesh.coordinate("dp"), n = mesh["dp"]->size();
    const std::int64_t rows = data.first.shape(0) / n;
    return {data.first.narrow(0, d * rows, rows), data.second.narrow(0, d * rows, rows)};
  }
  /// The mean of the ranks' losses, after a step.
  double step(optim::Optimizer& optimizer, const std::pair<Tensor, Tensor>& data) {
    optimizer.zero_grad();
    const Tensor loss = loss_of_part(net, layers, own(data));
    loss.backward();
    optimizer.step();
    const Tensor mean = loss.detach() * (1.0 / mesh["dp"]->size());
    mesh["dp"]->all_reduce(mean).wait();
    return mean.item<double>();
  }

  const comm::Mesh mesh;
  Net net;
  const Parallelized layers;
  const FullySharded sharded;
};

double step(Net& net, optim::Optimizer& optimizer, const std::pair<Tensor, Tensor>& data) {
  optimizer.zero_grad();
  const Tensor loss = loss_of_all(net, data);
  loss.backward();
  optimizer.step();
  return loss.item<double>();
}

// Sums are taken in other orders: 1e-9 is the bound that is asked for, rounding gives some 1e-14.
TEST_F(FullyShardTensorTest, TrainsAsOneProcess) {
  for (const bool sequence : {false, true}) {
    for (const auto& [dp, tp] : {std::pair(2, 2), {1, 2}, {2, 1}, {2, 4}}) {
      for (const bool checkpointed : {false, true}) {
        if (checkpointed && tp * dp != 4) continue;
        SCOPED_TRACE(::testing::Message()
                     << dp << ' ' << tp << ' ' << sequence << ' ' << checkpointed);
        comm::run_ranks(dp * tp, [&, dp = dp, tp = tp](comm::ProcessGroup& group) {
          Net plain = small_net();
          Cut cut(group, dp, tp, sequence);
          plain.checkpointed = cut.net.checkpointed = checkpointed;
          expect_same(cut.sharded.state_dict(), plain.state_dict());
          EXPECT_EQ(cut.net.parameter_count(), plain.parameter_count());
          optim::Adam adam(cut.net.parameters(), {.lr = 0.01});
          optim::Adam plain_adam(plain.parameters(), {.lr = 0.01});
          for (int i = 0; i < 10; ++i) {
            EXPECT_NEAR(cut.step(adam, text(i)), step(plain, plain_adam, text(i)), 1e-9);
          }
          expect_near(cut.sharded.state_dict(), plain.state_dict(), 1e-9);
          cut.net.eval();
          const NoGrad no_grad;
          EXPECT_NEAR(loss_of_part(cut.net, cut.layers, text(0)).item<double>(),
                      loss_of_all(plain, text(0)).item<double>(), 1e-9);
        });
      }
    }
  }
}

// Equal generators draw equal masks, of the whole batch on each rank of "dp".
TEST_F(FullyShardTensorTest, DropoutIsThatOfOneProcess) {
  for (const bool sequence : {false, true}) {
    comm::run_ranks(4, [&](comm::ProcessGroup& group) {
      Net plain = small_net(0.2);
      Cut cut(group, 2, 2, sequence, 0.2);
      optim::Adam adam(cut.net.parameters(), {.lr = 0.01});
      optim::Adam plain_adam(plain.parameters(), {.lr = 0.01});
      for (int i = 0; i < 3; ++i) {
        manual_seed(5);
        const double expected = step(plain, plain_adam, text(i));
        manual_seed(5);
        adam.zero_grad();
        const Tensor loss = loss_of_part(cut.net, cut.layers, text(i));
        loss.backward();
        adam.step();
        EXPECT_NEAR(loss.item<double>(), expected, 1e-9);
      }
      expect_near(cut.sharded.state_dict(), plain.state_dict(), 1e-9);
    });
  }
}

TEST_F(FullyShardTensorTest, NoSyncAddsUpOnEachRank) {
  for (const bool sequence : {false, true}) {
    comm::run_ranks(4, [&](comm::ProcessGroup& group) {
      Net plain = small_net();
      Cut cut(group, 2, 2, sequence, 0, {.reshard_after_forward = sequence});
      optim::SGD sgd(cut.net.parameters(), {.lr = 0.1}), plain_sgd(plain.parameters(), {.lr = 0.1});
      for (int i = 0; i < 2; ++i) loss_of_all(plain, text(i)).backward();
      {
        const auto no_sync = cut.sharded.no_sync();
        loss_of_part(cut.net, cut.layers, cut.own(text(0))).backward();
      }
      loss_of_part(cut.net, cut.layers, cut.own(text(1))).backward();
      sgd.step();
      plain_sgd.step();
      expect_near(cut.sharded.state_dict(), plain.state_dict(), 1e-12);
    });
  }
}

// Layers exchange rounded tensors, as parallelize does with rounded weights; the mean is in f32.
TEST_F(FullyShardTensorTest, MixedPrecisionIsThatOfRoundedLayers) {
  for (const auto& [dp, sequence] : {std::pair(1, false), {1, true}, {2, false}, {2, true}}) {
    comm::run_ranks(2 * dp, [&, dp = dp, sequence = sequence](comm::ProcessGroup& group) {
      Net half = small_net();
      half.to(DType::bf16);
      Cut cut(group, dp, 2, sequence, 0,
              {.mp_policy = {.param_dtype = DType::bf16, .reduce_dtype = DType::f32}});
      const Parallelized layers = parallelize(half, *cut.mesh["tp"], plan_of(sequence));
      const Tensor loss = loss_of_part(cut.net, cut.layers, cut.own(text(0)));
      const Tensor expected = loss_of_part(half, layers, cut.own(text(0)));
      EXPECT_TRUE(testing::same_bits(loss, expected));
      loss.backward();
      expected.backward();
      const auto rounded = half.named_parameters();
      const nn::NamedShards shards = nn::shards_of(cut.net);
      ASSERT_EQ(shards.size(), rounded.size());
      for (std::size_t i = 0; i < shards.size(); ++i) {
        const auto& [name, shard] = shards[i];
        const Tensor mean = raw::to(rounded[i].second.grad(), DType::f32);
        raw::mul_(mean, 1.0 / dp);
        cut.mesh["dp"]->all_reduce(mean).wait();
        nn::Cut rows = shard->cut;  // of what parallelize has left
        rows.of = nullptr;
        EXPECT_TRUE(testing::same_bits(shard->part.grad(), raw::to(rows.part_of(mean), DType::f64)))
            << name;
      }
    });
  }
}

TEST_F(FullyShardTensorTest, ClipsByTheNormOfTheWhole) {
  for (const bool sequence : {false, true}) {
    comm::run_ranks(4, [&](comm::ProcessGroup& group) {
      Net plain = small_net();
      Cut cut(group, 2, 2, sequence);
      loss_of_all(plain, text(0)).backward();
      loss_of_part(cut.net, cut.layers, cut.own(text(0))).backward();
      const double norm = optim::clip_grad_norm(plain.parameters(), 0.1).item<double>();
      EXPECT_GT(norm, 0.1);
      EXPECT_NEAR(cut.sharded.clip_grad_norm(0.1).item<double>(), norm, 1e-9);
      EXPECT_NEAR(cut.sharded.clip_grad_norm(1).item<double>(), 0.1, 1e-6);  // it is (norm + 1e-6)
      EXPECT_WEFT_ERROR(cut.layers.clip_grad_norm(1), InvalidArgument,
                        "use the handle that it has returned");
    });
  }
}

/// One process, as the handle of a model that is cut.
struct Alone {
  struct State {
    std::function<nn::NamedTensors()> state_dict;
    std::function<void(const nn::NamedTensors&)> load_state_dict;
  };
  template <class Part>
  State state_of(Part& part) const {
    return {[&part] { return part.state_dict(); },
            [&part](const nn::NamedTensors& state) { part.load_state_dict(state); }};
  }
  nn::NamedTensors state_dict() const { return net.state_dict(); }
  void load_state_dict(const nn::NamedTensors& values) { net.load_state_dict(values); }

  Net& net;
};

// From a mesh to one process, and back to another mesh.
TEST_F(FullyShardTensorTest, AStateGoesOnInOneProcessAndBack) {
  struct Saved {
    nn::NamedTensors model, adam, averages;
  };
  const auto train = [](auto& handle, auto& net, const auto& step_of, int from,
                        const Saved& before) {
    optim::Adam adam(net.parameters(), {.lr = 0.01});
    nn::ExponentialMovingAverage ema(net, 0.9);
    auto state = handle.state_of(adam);
    auto averages = handle.state_of(ema);
    if (from > 0) {
      handle.load_state_dict(before.model);
      state.load_state_dict(before.adam);
      averages.load_state_dict(before.averages);
    }
    for (int i = from; i < from + 3; ++i) {
      step_of(adam, text(i));
      ema.update();
    }
    return Saved{handle.state_dict(), state.state_dict(), averages.state_dict()};
  };
  const auto alone = [&](int from, const Saved& before) {
    Net net = small_net();
    Alone handle{net};
    const Saved after = train(
        handle, net, [&](auto& adam, const auto& data) { step(net, adam, data); }, from, before);
    return after;
  };
  const auto on_mesh = [&](int dp, int tp, bool sequence, int from, const Saved& before) {
    Saved after;
    comm::run_ranks(dp * tp, [&](comm::ProcessGroup& group) {
      Cut cut(group, dp, tp, sequence);
      const Saved now = train(
          cut.sharded, cut.net, [&](auto& adam, const auto& data) { cut.step(adam, data); }, from,
          before);
      if (group.rank() == 0) after = now;
    });
    return after;
  };
  const Saved first = alone(0, {}), second = alone(3, first), third = alone(6, second);
  const auto expect = [](const Saved& got, const Saved& expected) {
    expect_near(got.model, expected.model, 1e-9);
    expect_near(got.adam, expected.adam, 1e-9);
    expect_near(got.averages, expected.averages, 1e-9);
  };
  const Saved here = on_mesh(2, 2, true, 0, {});
  expect(here, first);
  const Saved there = alone(3, here);
  expect(there, second);
  expect(on_mesh(4, 1, false, 6, there), third);
  expect(on_mesh(1, 4, true, 6, there), third);
}

TEST_F(FullyShardTensorTest, TheHandleOfTheLayersRefusesWholeStates) {
  comm::run_ranks(2, [](comm::ProcessGroup& group) {
    Cut cut(group, 2, 1, false);
    optim::Adam adam(cut.net.parameters());
    EXPECT_WEFT_ERROR(cut.layers.state_dict(), InvalidArgument,
                      "fully_shard has cut the parts of this module");
    cut.step(adam, text(0));
    EXPECT_WEFT_ERROR(cut.layers.state_of(adam).state_dict(), InvalidArgument,
                      "fully_shard has cut the parts of this module");
  });
}

TEST_F(FullyShardTensorTest, TheHandleOfTheLayersRefusesWhatIsCutBesideThem) {
  comm::run_ranks(4, [](comm::ProcessGroup& group) {
    const comm::Mesh mesh({std::shared_ptr<void>(), &group}, {{"dp", 2}, {"tp", 2}});
    Net net = small_net();
    ParallelPlan plan = plan_of(false);
    plan.pop_back();  // the head
    const Parallelized layers = parallelize(net, *mesh["tp"], plan);
    fully_shard(net.head, mesh["dp"]);
    EXPECT_WEFT_ERROR(layers.state_dict(), InvalidArgument, "head: fully_shard has cut");
    EXPECT_WEFT_ERROR(layers.clip_grad_norm(1), InvalidArgument, "head: fully_shard has cut");
  });
}

// A module that is not in the plan computes with a part: its gradients are compared.
TEST_F(FullyShardTensorTest, AForgottenNormIsFound) {
  comm::run_ranks(4, [](comm::ProcessGroup& group) {
    const comm::Mesh mesh(std::shared_ptr<comm::ProcessGroup>(std::shared_ptr<void>(), &group),
                          {{"dp", 2}, {"tp", 2}});
    Net net = small_net();
    ParallelPlan plan = plan_of(true);
    std::erase_if(plan, [](const auto& entry) { return entry.first == "norm"; });
    const Parallelized layers = parallelize(net, *mesh["tp"], plan);
    fully_shard(net, mesh["dp"]);
    const Tensor loss = loss_of_part(net, layers, text(mesh.coordinate("dp")));
    EXPECT_WEFT_ERROR(loss.backward(), InvalidArgument, "the gradient of norm.");
  });
}

}  // namespace
}  // namespace weft::parallel
