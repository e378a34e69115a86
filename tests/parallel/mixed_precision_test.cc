// fully_shard with a MixedPrecisionPolicy: to the bit what one does by hand with rounded weights.
#include "weft/parallel/mixed_precision.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/autograd/checkpoint.h"
#include "weft/comm/mesh.h"
#include "weft/nn/ema.h"
#include "weft/optim/adam.h"
#include "weft/optim/sgd.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/parallel/sharded_nets.h"

namespace weft::parallel {
namespace {

using testing::batch;
using testing::LabelledBatch;
using testing::loss_of;
using testing::same_bits;

class MixedPrecisionTest : public FullyShardTest {};

const MixedPrecisionPolicy kPolicy = {.param_dtype = DType::bf16, .reduce_dtype = DType::f32};

/// Copies the values of `from`, rounded.
void round_into(nn::ModuleBase& to, const nn::ModuleBase& from) {
  const auto targets = to.state_dict(), values = from.state_dict();
  for (std::size_t i = 0; i < targets.size(); ++i) {
    raw::copy_(targets[i].second, values[i].second);
  }
}

LabelledBatch rounded(const LabelledBatch& data) {
  return {raw::to(data.x, DType::bf16), data.label};
}

/// The mean of the ranks' gradients of `half`, summed in `sums`, as the gradients of `whole`.
void average(comm::ProcessGroup& group, const nn::ModuleBase& half, const nn::ModuleBase& whole,
             DType sums) {
  const std::vector<Tensor> from = half.parameters(), to = whole.parameters();
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (!from[i].grad().defined()) continue;
    const Tensor sum = raw::clone(raw::to(from[i].grad(), sums));
    raw::mul_(sum, 1.0 / group.size());
    group.all_reduce(sum).wait();
    to[i].set_grad(raw::to(sum, DType::f32));
  }
}

// Ten steps of two ranks: losses, weights and evaluations.
template <class Make, class Cut>
void expect_by_hand(const Make& make, const Cut& cut_it, const MixedPrecisionPolicy& policy) {
  comm::testing::in_groups("shm", 2, [&](comm::ProcessGroup& group) {
    auto model = testing::seeded(3, make), plain = testing::seeded(3, make);
    auto half = testing::seeded(3, make);
    half.to(DType::bf16);
    const FullySharded sharded = cut_it(model, group, FullyShardOptions{.mp_policy = policy});
    optim::Adam adam(model.parameters(), {.lr = 0.01});
    optim::Adam plain_adam(plain.parameters(), {.lr = 0.01});
    for (int i = 0; i < 10; ++i) {
      const auto data = batch(i, {12, 6}, DType::f32).shard(group.rank(), 2);
      adam.zero_grad();
      const Tensor loss = loss_of(model, data);
      loss.backward();
      round_into(half, plain);
      half.zero_grad();
      plain_adam.zero_grad();
      const Tensor expected = loss_of(half, rounded(data));
      expected.backward();
      EXPECT_TRUE(same_bits(loss, expected)) << i;
      average(group, half, plain, policy.reduce_dtype.value_or(DType::bf16));
      adam.step();
      plain_adam.step();
      expect_same(sharded.state_dict(), plain.state_dict());
      const NoGrad no_grad;
      round_into(half, plain);
      EXPECT_TRUE(same_bits(model(data.x), half(rounded(data).x))) << i;
    }
    for (const Tensor& part : model.parameters()) {
      EXPECT_EQ(part.dtype(), DType::f32);
      EXPECT_EQ(part.grad().defined(), part.requires_grad());
      if (part.requires_grad()) {
        EXPECT_EQ(part.grad().dtype(), DType::f32);
      }
    }
  });
}

FullySharded cut_net(nn::Sequential& model, comm::ProcessGroup& group,
                     const FullyShardOptions& options) {
  return cut(model, group, options);
}

TEST_F(MixedPrecisionTest, IsDoneByHandBitForBit) {
  expect_by_hand(net, cut_net, kPolicy);
  expect_by_hand(net, cut_net, {.param_dtype = DType::bf16});
  const auto kept = [](nn::Sequential& model, comm::ProcessGroup& group,
                       FullyShardOptions options) {
    options.reshard_after_forward = false;
    return cut(model, group, options);
  };
  expect_by_hand(net, kept, kPolicy);
  const auto replicas = [](nn::Sequential& model, comm::ProcessGroup& group,
                           FullyShardOptions options) {
    const comm::Mesh mesh({std::shared_ptr<void>(), &group}, {{"replica", 2}, {"shard", 1}});
    options.replicas = mesh["replica"];
    for (auto& [path, module] : model.named_modules()) {
      if (path == "0") fully_shard(module, mesh["shard"], options);
    }
    return fully_shard(model, mesh["shard"], options);
  };
  expect_by_hand(net, replicas, kPolicy);
}

TEST_F(MixedPrecisionTest, TiedAndFrozenParameters) {
  expect_by_hand(
      [] {
        nn::Linear tied(6, 6), frozen(6, 6);
        frozen.requires_grad(false);
        return nn::Sequential{nn::Sequential{tied, nn::Tanh(), tied},
                              nn::Sequential{frozen, nn::Tanh()}, nn::Linear(6, 3)};
      },
      [](nn::Sequential& model, comm::ProcessGroup& group, const FullyShardOptions& options) {
        for (auto& [path, module] : model.named_modules()) {
          if (path == "0" || path == "1") fully_shard(module, group, options);
        }
        return fully_shard(model, group, options);
      },
      kPolicy);
}

/// A block that is checkpointed, and one that is not.
struct Blocks : nn::Module<Blocks> {
  struct Block : nn::Module<Block> {
    nn::Linear in = child("in", nn::Linear(6, 8));
    nn::Linear out = child("out", nn::Linear(8, 6));
    Tensor forward(const Tensor& x) { return x + out(tanh(in(x))); }
  };
  Block a = child("a", Block());
  Block b = child("b", Block());
  nn::Linear head = child("head", nn::Linear(6, 3));
  Tensor forward(const Tensor& x) {
    return head(b(autograd::checkpoint([this](const Tensor& y) { return a(y); }, x)));
  }
};

TEST_F(MixedPrecisionTest, CheckpointedBlocks) {
  expect_by_hand([] { return Blocks(); },
                 [](Blocks& model, comm::ProcessGroup& group, const FullyShardOptions& options) {
                   for (nn::ModuleBase block : {nn::ModuleBase(model.a), nn::ModuleBase(model.b)}) {
                     fully_shard(block, group, options);
                   }
                   return fully_shard(model, group, options);
                 },
                 kPolicy);
}

// Gradients of several backwards without a reduction are added in the dtype of the reduction.
TEST_F(MixedPrecisionTest, SumsOfSeveralBackwardsAreInF32) {
  comm::testing::in_groups("shm", 2, [](comm::ProcessGroup& group) {
    nn::Sequential model = testing::seeded(3, net), plain = testing::seeded(3, net);
    const FullySharded sharded = cut(model, group, {.mp_policy = kPolicy});
    const auto part = [&](int i) { return batch(i, {12, 6}, DType::f32).shard(group.rank(), 2); };
    {
      const auto no_sync = sharded.no_sync();
      loss_of(model, part(0)).backward();
    }
    loss_of(model, part(1)).backward();
    std::vector<Tensor> sums;
    for (int i = 0; i < 2; ++i) {
      nn::Sequential half = testing::seeded(3, net);
      half.to(DType::bf16);
      loss_of(half, rounded(part(i))).backward();
      std::size_t k = 0;
      for (const Tensor& x : half.parameters()) {
        const Tensor gradient = raw::to(x.grad(), DType::f32);
        if (i == 0) {
          sums.push_back(gradient);
        } else {
          raw::add_scaled_(sums[k++], 1, gradient);
        }
      }
    }
    const auto whole = plain.parameters();
    for (std::size_t k = 0; k < sums.size(); ++k) whole[k].set_grad(sums[k]);
    average(group, plain, plain, DType::f32);
    optim::SGD(model.parameters(), {.lr = 0.1}).step();
    optim::SGD(plain.parameters(), {.lr = 0.1}).step();
    expect_same(sharded.state_dict(), plain.state_dict());
  });
}

// No rounded copy outlives the values that it was made of.
TEST_F(MixedPrecisionTest, TheNextForwardSeesNewValues) {
  comm::run_ranks(2, [](comm::ProcessGroup& group) {
    nn::Sequential model = testing::seeded(3, net), plain = testing::seeded(3, net);
    nn::Sequential half = testing::seeded(3, net);
    half.to(DType::bf16);
    const FullySharded sharded = cut(model, group, {.mp_policy = kPolicy});
    optim::SGD sgd(model.parameters(), {.lr = 0.1});
    nn::ExponentialMovingAverage ema(model, 0.5);
    const Tensor x = batch(9, {4, 6}, DType::f32).x;
    const auto same = [&](const char* when) {
      const NoGrad no_grad;
      plain.load_state_dict(sharded.state_dict());
      round_into(half, plain);
      EXPECT_TRUE(same_bits(model(x), half(raw::to(x, DType::bf16)))) << when;
      return raw::clone(plain.parameters()[0]);
    };
    const Tensor first = same("at first");
    step(model, sgd, batch(0, {12, 6}, DType::f32).shard(group.rank(), 2));
    const Tensor second = same("after a step");
    EXPECT_FALSE(same_bits(first, second));
    ema.update();
    ema.apply();
    EXPECT_FALSE(same_bits(same("with averages"), second));
    ema.restore();
    EXPECT_TRUE(same_bits(same("without averages"), second));
    sharded.load_state_dict(testing::seeded(4, net).state_dict());
    EXPECT_FALSE(same_bits(same("after load_state_dict"), second));
  });
}

TEST_F(MixedPrecisionTest, GathersAreOfHalfTheBytes) {
  comm::run_ranks(2, [](comm::ProcessGroup& group) {
    const auto sent = [&](const MixedPrecisionPolicy& policy) {
      nn::Sequential model = testing::seeded(3, net);
      const FullySharded sharded = cut(model, group, {.mp_policy = policy});
      const NoGrad no_grad;
      model(zeros({2, 6}));
      const auto before = sharded.traffic().bytes_sent;
      model(zeros({2, 6}));
      return sharded.traffic().bytes_sent - before;
    };
    EXPECT_EQ(2 * sent(kPolicy), sent({}));
  });
}

/// Notes the dtypes of its arguments and of its result.
struct Notes : nn::Module<Notes> {
  nn::Linear fc = child("fc", nn::Linear(4, 4));
  std::string seen;
  Tensor forward(const Tensor& x, const Tensor& again, const Tensor& number) {
    seen =
        detail::concat(x.dtype(), ' ', again.same(x), ' ', number.dtype(), ' ', fc.weight.dtype());
    return fc(x);
  }
};

TEST_F(MixedPrecisionTest, ArgumentsAndResultsAreCast) {
  comm::run_ranks(2, [](comm::ProcessGroup& group) {
    const auto run = [&](const MixedPrecisionPolicy& policy, DType of_x) {
      Notes model;
      const FullySharded sharded = fully_shard(model, group, {.mp_policy = policy});
      const Tensor x = full({2, 4}, 1.0).to(of_x), number = zeros({1}, DType::i64);
      const Tensor y = model(x, x, number);
      y.sum().backward();
      EXPECT_EQ(model.parameters()[0].grad().dtype(), DType::f32);
      return detail::concat(model.seen, " -> ", y.dtype());
    };
    MixedPrecisionPolicy policy = kPolicy;
    EXPECT_EQ(run(policy, DType::f32), "bf16 1 i64 bf16 -> bf16");
    policy.output_dtype = DType::f32;
    EXPECT_EQ(run(policy, DType::f32), "bf16 1 i64 bf16 -> f32");
    policy.cast_forward_inputs = false;
    EXPECT_EQ(run(policy, DType::bf16), "bf16 1 i64 bf16 -> f32");
    EXPECT_EQ(run({.reduce_dtype = DType::f64}, DType::f32), "f32 1 i64 f32 -> f32");
    nn::Linear layer(4, 4);
    EXPECT_WEFT_ERROR(fully_shard(layer, group, {.mp_policy = {.reduce_dtype = DType::i64}}), Dtype,
                      "mp_policy's reduce_dtype is i64: expected a floating dtype");
    if (group.rank() == 1) policy = {};
    EXPECT_WEFT_ERROR(fully_shard(layer, group, {.mp_policy = policy}), InvalidArgument,
                      "rank 1 cuts another module than rank 0: it has \"Linear , "
                      "reshard_after_forward unset, replicas 1, param_dtype unset");
  });
}

}  // namespace
}  // namespace weft::parallel
