// fully_shard: what it refuses, and mistakes that it names.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "weft/comm/mesh.h"
#include "weft/core/runtime/capture.h"
#include "weft/nn/shard.h"
#include "weft/optim/sgd.h"
#include "weft/parallel/distributed_data_parallel.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/parallel/sharded_nets.h"

namespace weft::parallel {
namespace {

using testing::batch;
using testing::loss_of;

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
                      "this is weight of the unit Linear, which fully_shard has cut");
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
      // Half of rank 0's gradient, since rank 1's counts as zeros.
      EXPECT_EQ(model.b.bias.grad().defined(), false);
      EXPECT_EQ(model.named_parameters()[3].second.grad().to_vector<float>(),
                (std::vector<float>{1, 1}));
    }
  });
}

// Works even if units are freed between forward and backward, since all ranks gather the same ones.
TEST_F(FullyShardTest, AUnitThatTheBackwardsOfAllRanksLeaveOutIsNamed) {
  comm::run_ranks(2, [&](comm::ProcessGroup& group) {
    Parts model = testing::seeded(3, [] { return Parts(); });
    fully_shard(model.a, group);
    fully_shard(model.b, group);
    fully_shard(model, group);
    for (int i = 0; i < 4; ++i) {
      SCOPED_TRACE(i);
      model.zero_grad();
      const auto [half, whole] = model(full({2, 4}, 1.0 + group.rank()));
      if (i % 2 == 1) {
        whole.sum().backward();
      } else {
        EXPECT_WEFT_ERROR(half.sum().backward(), InvalidArgument,
                          detail::concat("rank ", group.rank(),
                                         ": the parameters of 1 of 2 units got no gradient in "
                                         "this backward: b. "));
        // Two rows of the ranks' mean, 1.5.
        EXPECT_EQ(model.named_parameters()[0].second.grad().to_vector<float>(),
                  (std::vector<float>(8, 3)));
      }
      EXPECT_EQ(model.named_parameters()[3].second.grad().to_vector<float>(),
                (std::vector<float>(2, i % 2 == 1 ? 2 : 0)));
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
                                          "rank 0 calls operation 3, all_gather of 10 f32 (b), "
                                          "rank 1 calls operation 3, all_gather of 10 f32 (a);");
                                      model(full({2, 4}, 1.0));
                                    }),
                    Comm, "this group has ended");
}

// By the path of its module within the unit, and by the unit's, which the first call tells.
TEST_F(FullyShardTest, AParameterThatIsNotThereIsNamedWithItsUnit) {
  comm::run_ranks(2, [&](comm::ProcessGroup& group) {
    nn::Linear inner(4, 4);
    nn::Sequential unit{nn::Sequential{inner, nn::Tanh()}, nn::Linear(4, 4)};
    nn::Sequential blocks{unit, nn::Linear(4, 4)};
    fully_shard(unit, group);
    fully_shard(blocks, group);
    EXPECT_WEFT_ERROR(inner.bias.sum(), InvalidArgument,
                      "this is 0.0.bias of the unit 0, which fully_shard has cut");
    nn::Sequential model;
    model.append(blocks);
    fully_shard(model, group);
    model(full({2, 4}, 1.0));
    EXPECT_WEFT_ERROR(inner.bias.sum(), InvalidArgument,
                      "this is 0.0.bias of the unit 0.0, which fully_shard has cut");
  });
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

TEST_F(FullyShardTest, AParameterThatWasAddedAfterTheCutIsNamed) {
  comm::run_ranks(2, [](comm::ProcessGroup& group) {
    nn::Sequential model = net();
    const FullySharded sharded = cut(model, group);
    model.append(nn::Linear(3, 3));
    EXPECT_WEFT_ERROR(model(full({2, 6}, 1.0)), InvalidArgument,
                      "parameter 5.weight of Sequential was added after that was cut");
  });
}

TEST_F(FullyShardTest, UnitsOfOneModelAreCutOverTheSameRanks) {
  comm::run_ranks(2, [&](comm::ProcessGroup& group) {
    const comm::Mesh mesh({std::shared_ptr<void>(), &group}, {{"replica", 2}, {"shard", 1}});
    const auto call = [&](const std::shared_ptr<comm::ProcessGroup>& of_a,
                          const FullyShardOptions& options) {
      Parts model;
      fully_shard(model.a, of_a, options);
      fully_shard(model, mesh["shard"]);
      model(full({2, 4}, 1.0));
    };
    EXPECT_WEFT_ERROR(call(mesh["replica"], {}), InvalidArgument,
                      "a and Parts, of which it is part, are cut over different groups");
    EXPECT_WEFT_ERROR(call(mesh["shard"], {.replicas = mesh["replica"]}), InvalidArgument,
                      "a and Parts, of which it is part, are cut over different replicas");
    call(mesh["shard"], {});
  });
}

TEST_F(FullyShardTest, AUnitThatIsGoneIsNamed) {
  comm::run_ranks(2, [&](comm::ProcessGroup& group) {
    nn::Linear kept(4, 4);
    fully_shard(nn::Sequential{kept, nn::Linear(4, 4)}, group);
    EXPECT_WEFT_ERROR(fully_shard(kept, group), InvalidArgument,
                      "weight was cut together with a module that is gone");
    EXPECT_WEFT_ERROR(DistributedDataParallel(kept, group), InvalidArgument,
                      "averages its gradients by itself");
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
    const auto gradients = [&](bool outlives) {
      std::optional model = testing::seeded(3, net);
      cut(*model, group);
      const Tensor loss = loss_of(*model, batch(group.rank(), {4, 6}, DType::f32));
      const std::vector<Tensor> parts = model->parameters();
      if (outlives) model.reset();
      loss.backward();  // the units live as long as the tape
      std::vector<std::vector<float>> all;
      for (const Tensor& part : parts) all.push_back(part.grad().to_vector<float>());
      return all;
    };
    EXPECT_EQ(gradients(true), gradients(false));
  });
}

/// Whether nothing of the model is gathered.
bool all_released(const nn::ModuleBase& model) {
  return std::ranges::all_of(nn::used_parameters(model),
                             [](const Tensor& x) { return x.storage()->released(); });
}

/// A net that throws in its ReLU, between two units, where `now` says so.
nn::Sequential throwing_net(const bool& now) {
  nn::Sequential model = testing::seeded(3, net);
  model.apply([&](nn::ModuleBase& m) {
    if (m.name() != "1") return;
    m.register_forward_pre_hook([&now](nn::ModuleBase&, std::span<Tensor>) {
      if (now) throw std::runtime_error("mine");
    });
  });
  return model;
}

TEST_F(FullyShardTest, OneProcessGoesOnAfterAForwardThatThrows) {
  for (const bool reshard : {true, false}) {
    comm::run_ranks(1, [&](comm::ProcessGroup& group) {
      bool now = false;
      nn::Sequential model = throwing_net(now);
      cut(model, group, {.reshard_after_forward = reshard});
      const auto data = batch(0, {4, 6}, DType::f32);
      for (int i = 0; i < 2; ++i) {
        now = true;
        EXPECT_THROW(model(data.x), std::runtime_error);
        EXPECT_TRUE(all_released(model));
        now = false;
        model.zero_grad();
        loss_of(model, data).backward();
        EXPECT_TRUE(model.parameters()[0].grad().defined());
        EXPECT_TRUE(all_released(model));
      }
    });
  }
}

// Long before the group's timeout, and while the rank that has thrown is still there.
TEST_F(FullyShardTest, OtherRanksHearOfAForwardThatThrows) {
  std::atomic<bool> heard = false;
  comm::run_ranks(2,
                  [&](comm::ProcessGroup& group) {
                    bool now = false;
                    nn::Sequential model = throwing_net(now);
                    cut(model, group);
                    const Tensor x = full({2, 6}, 1.0);
                    model(x).sum().backward();
                    now = group.rank() == 1;
                    if (now) {
                      EXPECT_THROW(model(x), std::runtime_error);
                      EXPECT_TRUE(all_released(model));
                      const comm::Deadline patience = comm::testing::patience();
                      while (!heard && !patience.passed())
                        std::this_thread::sleep_for(std::chrono::milliseconds(1));
                      EXPECT_TRUE(heard);
                    } else {
                      EXPECT_WEFT_ERROR(model(x).sum().backward(), PeerFailed,
                                        "rank 1 closed its connection");
                      heard = true;
                    }
                  },
                  {.timeout = std::chrono::hours(1)});
}

// A replay would not gather. The ranks go on without it.
TEST_F(FullyShardTest, ACapturedStepIsRefused) {
  comm::run_ranks(2, [&](comm::ProcessGroup& group) {
    nn::Sequential model = net();
    cut(model, group);
    const Tensor x = full({2, 6}, 1.0);
    auto step = graph::capture([&] {
      model.zero_grad();
      model(x).sum().backward();
    });
    step();
    EXPECT_WEFT_ERROR(step(), Unsupported, "a replay would not gather parameters");
    model.zero_grad();
    model(x).sum().backward();
    EXPECT_TRUE(model.parameters()[0].grad().defined());
  });
}

// A second backward in a hook that runs after the first one has reduced all gradients.
TEST_F(FullyShardTest, MoreGradientsInTheSameBackwardAreRefused) {
  comm::run_ranks(2, [&](comm::ProcessGroup& group) {
    nn::Sequential model = net();
    cut(model, group);
    const Tensor x = full({2, 6}, 1.0).set_requires_grad();
    const Tensor other = model(full({2, 6}, 0.5)).sum(), loss = model(x).sum();
    autograd::add_grad_hook(x, [&](const Tensor&) {
      other.backward();
      return Tensor();
    });
    EXPECT_WEFT_ERROR(loss.backward(), InvalidArgument,
                      "would get a contribution after its final hooks ran");
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

}  // namespace
}  // namespace weft::parallel
