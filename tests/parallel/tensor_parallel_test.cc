// parallelize: that ranks with parts of the weights compute what one process computes.
#include "weft/parallel/tensor_parallel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weft/autograd/autocast.h"
#include "weft/autograd/checkpoint.h"
#include "weft/autograd/ops.h"
#include "weft/comm/mesh.h"
#include "weft/core/runtime/rng.h"
#include "weft/nn/attention.h"
#include "weft/nn/batch_norm.h"
#include "weft/nn/cut.h"
#include "weft/nn/dropout.h"
#include "weft/nn/ema.h"
#include "weft/nn/embedding.h"
#include "weft/nn/layer_norm.h"
#include "weft/nn/module_list.h"
#include "weft/optim/adam.h"
#include "weft/optim/sgd.h"
#include "weft/parallel/context_parallel.h"
#include "weft/parallel/distributed_data_parallel.h"
#include "weft/parallel/vocab_loss.h"
#include "weft/tensor/creation.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/parallel/nets.h"
#include "weft/tests/parallel/sharded_nets.h"
#include "weft/tests/parallel/tensor_nets.h"

namespace weft::parallel {
namespace {

using testing::batch;
using testing::Block;
using testing::kHeads;
using testing::kLength;
using testing::kWidth;
using testing::kWords;
using testing::loss_of_all;
using testing::loss_of_part;
using testing::Net;
using testing::plan_of;
using testing::text;

template <class Loss>
double step(optim::Optimizer& optimizer, const Loss& loss_of) {
  optimizer.zero_grad();
  const Tensor loss = loss_of();
  loss.backward();
  optimizer.step();
  return loss.item<double>();
}

std::string generators() { return default_generators().state(); }

void expect_close(const nn::NamedTensors& got, const nn::NamedTensors& expected) {
  expect_near(got, expected, 1e-9);
}

class TensorParallelTest : public FullyShardTest {};

// Sums are taken in other orders: 1e-9 is the bound that is asked for, rounding gives some 1e-14.
TEST_F(TensorParallelTest, TrainsAsOneProcess) {
  for (const bool sequence : {false, true}) {
    for (const bool checkpointed : {false, true}) {
      for (const int n : {1, 2, 4}) {
        SCOPED_TRACE(::testing::Message() << n << ' ' << sequence << ' ' << checkpointed);
        comm::run_ranks(n, [&](comm::ProcessGroup& group) {
          Net plain = testing::seeded(3, [] { return Net(); });
          Net net = testing::seeded(3, [] { return Net(); });
          plain.checkpointed = net.checkpointed = checkpointed;
          const Parallelized tp = parallelize(net, group, plan_of(sequence));
          expect_same(tp.state_dict(), plain.state_dict());
          optim::Adam adam(net.parameters(), {.lr = 0.01});
          optim::Adam plain_adam(plain.parameters(), {.lr = 0.01});
          for (int i = 0; i < 10; ++i) {
            const auto data = text(i);
            manual_seed(static_cast<std::uint64_t>(i));
            const double expected = step(plain_adam, [&] { return loss_of_all(plain, data); });
            const std::string drawn = generators();
            manual_seed(static_cast<std::uint64_t>(i));
            const double loss = step(adam, [&] { return loss_of_part(net, tp, data); });
            EXPECT_NEAR(loss, expected, 1e-9);
            EXPECT_EQ(generators(), drawn);
          }
          expect_close(tp.state_dict(), plain.state_dict());
          net.eval(), plain.eval();
          const NoGrad no_grad;
          EXPECT_NEAR(loss_of_part(net, tp, text(0)).item<double>(),
                      loss_of_all(plain, text(0)).item<double>(), 1e-9);
        });
      }
    }
  }
}

// A rank's own device is what creation functions take.
TEST_F(TensorParallelTest, OnADeviceOfItsOwn) {
  set_host_devices(2);
  comm::run_ranks(2, [](comm::ProcessGroup& group) {
    const Device device(DeviceType::cpu, group.rank());
    Net plain = testing::seeded(3, [] { return Net(); });
    Net net = testing::seeded(3, [] { return Net(); });
    plain.to(device), net.to(device);
    const Scoped by_default(&ThreadState::device, device);
    const Parallelized tp = parallelize(net, group, plan_of(false));
    plain.eval(), net.eval();
    const auto [x, y] = text(0);
    const std::pair data(x.to(device), y.to(device));
    EXPECT_NEAR(loss_of_part(net, tp, data).item<double>(), loss_of_all(plain, data).item<double>(),
                1e-9);
  });
}

// A rank keeps rows of the three blocks of in_proj_weight, and columns of out_proj.weight.
TEST_F(TensorParallelTest, ARankHasItsPart) {
  comm::run_ranks(2, [&](comm::ProcessGroup& group) {
    const Net plain = testing::seeded(3, [] { return Net(); });
    const Net net = testing::seeded(3, [] { return Net(); });
    const auto tp = parallelize(net, group, plan_of(false));
    std::map<std::string, Tensor> whole, part;
    for (const auto& [name, x] : plain.named_parameters()) whole[name] = x;
    for (const auto& [name, x] : net.named_parameters()) part[name] = x;
    ASSERT_EQ(part.size(), whole.size());
    const int r = group.rank();
    const auto expect = [&](const std::string& name, const Tensor& expected) {
      EXPECT_TRUE(part[name].is_leaf() && part[name].requires_grad()) << name;
      EXPECT_TRUE(testing::same_bits(part[name], expected)) << name;
    };
    const std::string a = "blocks.0.attention.", f = "blocks.1.";
    const Tensor in = whole[a + "in_proj_weight"], bias = whole[a + "in_proj_bias"];
    expect(a + "in_proj_weight",
           raw::cat(std::vector{raw::narrow(in, 0, 8 * r, 8), raw::narrow(in, 0, 16 + 8 * r, 8),
                                raw::narrow(in, 0, 32 + 8 * r, 8)},
                    0));
    expect(a + "in_proj_bias",
           raw::cat(std::vector{raw::narrow(bias, 0, 8 * r, 8), raw::narrow(bias, 0, 16 + 8 * r, 8),
                                raw::narrow(bias, 0, 32 + 8 * r, 8)},
                    0));
    expect(a + "out_proj.weight", raw::narrow(whole[a + "out_proj.weight"], 1, 8 * r, 8));
    expect(a + "out_proj.bias", whole[a + "out_proj.bias"]);
    expect(f + "fc1.weight", raw::narrow(whole[f + "fc1.weight"], 0, 16 * r, 16));
    expect(f + "fc1.bias", raw::narrow(whole[f + "fc1.bias"], 0, 16 * r, 16));
    expect(f + "fc2.weight", raw::narrow(whole[f + "fc2.weight"], 1, 16 * r, 16));
    expect(f + "fc2.bias", whole[f + "fc2.bias"]);
    expect("words.weight", raw::narrow(whole["words.weight"], 0, 5 * r, r ? 4 : 5));
    expect("head.bias", raw::narrow(whole["head.bias"], 0, 5 * r, r ? 4 : 5));
    expect("norm.weight", whole["norm.weight"]);
    EXPECT_FALSE(net.blocks[1].fc2.bias.requires_grad());  // the module's bias is zeros
    EXPECT_EQ(net.parameter_count(), plain.parameter_count());
    EXPECT_EQ(net.to_string(), plain.to_string());
  });
}

TEST_F(TensorParallelTest, TakesTheValuesOfRank0) {
  comm::run_ranks(2, [&](comm::ProcessGroup& group) {
    const auto make = [] { return Net(); };
    Net net = testing::seeded(static_cast<std::uint64_t>(3 + group.rank()), make);
    const Parallelized tp = parallelize(net, group, plan_of(true));
    expect_same(tp.state_dict(), testing::seeded(3, make).state_dict());
  });
}

// On another number of ranks, with another plan, and in one process.
TEST_F(TensorParallelTest, GoesOnWithAnotherPlan) {
  struct Saved {
    nn::NamedTensors model, adam, averages;
  };
  Saved saved;
  const auto train = [](int n, int from, int to, bool sequence, const Saved& before, Saved& after) {
    comm::run_ranks(n, [&](comm::ProcessGroup& group) {
      Net net = testing::seeded(3, [] { return Net(0); });
      const Parallelized tp = parallelize(net, group, plan_of(sequence));
      optim::Adam adam(net.parameters(), {.lr = 0.01});
      nn::ExponentialMovingAverage ema(net, 0.9);
      auto state = tp.state_of(adam);
      auto averages = tp.state_of(ema);
      if (from > 0) {
        tp.load_state_dict(before.model);
        state.load_state_dict(before.adam);
        averages.load_state_dict(before.averages);
      }
      for (int i = from; i < to; ++i) {
        step(adam, [&] { return loss_of_part(net, tp, text(i)); });
        ema.update();
      }
      const Saved now{tp.state_dict(), state.state_dict(), averages.state_dict()};
      if (group.rank() == 0) after = now;
    });
  };
  Saved whole, middle, end;
  train(1, 0, 6, false, {}, whole);
  train(4, 0, 3, true, {}, middle);
  train(2, 3, 6, false, middle, end);
  expect_close(end.model, whole.model);
  expect_close(end.adam, whole.adam);
  expect_close(end.averages, whole.averages);
  Net plain;
  plain.load_state_dict(end.model);  // the names of the plain model
}

TEST_F(TensorParallelTest, ClipsByTheNormOfTheWhole) {
  for (const bool sequence : {false, true}) {
    comm::run_ranks(2, [&](comm::ProcessGroup& group) {
      Net plain = testing::seeded(3, [] { return Net(0); });
      Net net = testing::seeded(3, [] { return Net(0); });
      const Parallelized tp = parallelize(net, group, plan_of(sequence));
      const auto gradient = [](Net& of, const Tensor& loss) {
        loss.backward();
        std::map<std::string, Tensor> result;
        for (const auto& [name, x] : of.named_parameters()) result[name] = x.grad();
        return result;
      };
      const auto expected = gradient(plain, loss_of_all(plain, text(0)));
      const auto got = gradient(net, loss_of_part(net, tp, text(0)));
      const double norm = optim::clip_grad_norm(plain.parameters(), 0.1).item<double>();
      EXPECT_GT(norm, 0.1);
      EXPECT_NEAR(tp.clip_grad_norm(0.1).item<double>(), norm, 1e-9);
      for (const char* name : {"norm.weight", "blocks.0.fc2.bias", "blocks.1.norm1.bias"}) {
        EXPECT_LE(testing::relative_difference(got.at(name), expected.at(name)), 1e-9) << name;
      }
      const Tensor rows =
          expected.at("blocks.0.fc1.weight").narrow(0, group.rank() * kWidth, kWidth);
      EXPECT_LE(testing::relative_difference(got.at("blocks.0.fc1.weight"), rows), 1e-9);
      EXPECT_WEFT_ERROR(tp.clip_grad_norm(-1), InvalidArgument, "max_norm is -1, needs 0 or more");
    });
  }
}

// dp 2 x tp 2: the mean over dp of the gradients of the parts.
TEST_F(TensorParallelTest, DistributedDataParallelIsAroundIt) {
  for (const bool sequence : {false, true}) {
    comm::run_ranks(4, [&](comm::ProcessGroup& group) {
      const comm::Mesh mesh(std::shared_ptr<comm::ProcessGroup>(std::shared_ptr<void>(), &group),
                            {{"dp", 2}, {"tp", 2}});
      Net plain = testing::seeded(3, [] { return Net(0); });
      Net net = testing::seeded(3, [] { return Net(0); });
      const Parallelized tp = parallelize(net, *mesh["tp"], plan_of(sequence));
      DistributedDataParallel ddp(net, *mesh["dp"]);
      optim::SGD sgd(net.parameters(), {.lr = 0.1, .momentum = 0.9});
      optim::SGD plain_sgd(plain.parameters(), {.lr = 0.1, .momentum = 0.9});
      for (int i = 0; i < 5; ++i) {
        const auto [x, y] = text(i);
        step(plain_sgd, [&] { return loss_of_all(plain, {x, y}); });
        const int d = mesh.coordinate("dp");
        const Tensor own_x = x.narrow(0, 2 * d, 2), own_y = y.narrow(0, 2 * d, 2);
        step(sgd, [&] {
          const Tensor logits = ddp(own_x);
          return cross_entropy(tp.ranks(), logits.flatten(0, 1), own_y.flatten(), kWords);
        });
      }
      expect_close(tp.state_dict(), plain.state_dict());
    });
  }
}

/// The table of words is the weight of the head, too, as in GPT-2.
struct Tied : nn::Module<Tied> {
  struct Linear : nn::Module<Linear> {
    explicit Linear(const Tensor& x) : weight(parameter("weight", x)) {}
    Tensor forward(const Tensor& x) const { return linear(x, weight, {}); }
    nn::Parameter weight;
  };
  Tensor forward(const Tensor& x) const { return head(tanh(middle(words(x)))); }
  nn::Embedding words = child("words", nn::Embedding(kWords, kWidth));
  nn::Linear middle = child("middle", nn::Linear(kWidth, kWidth));
  Linear head = child("head", Linear(words.weight));
};

TEST_F(TensorParallelTest, ATiedVocabularyIsCutOnce) {
  for (const int n : {1, 2, 4}) {
    comm::run_ranks(n, [](comm::ProcessGroup& group) {
      const auto make = [] {
        Tied net;
        net.to(DType::f64);
        return net;
      };
      Tied plain = testing::seeded(3, make), net = testing::seeded(3, make);
      const Parallelized tp =
          parallelize(net, group, {{"words", VocabParallel{}}, {"head", VocabParallel{}}});
      EXPECT_TRUE(net.words.weight.same(net.head.weight));
      optim::Adam adam(net.parameters(), {.lr = 0.01}),
          plain_adam(plain.parameters(), {.lr = 0.01});
      for (int i = 0; i < 4; ++i) {
        const auto [x, y] = text(i);
        const double expected = step(
            plain_adam, [&] { return nn::cross_entropy(plain(x).flatten(0, 1), y.flatten()); });
        const double loss = step(adam, [&] {
          return cross_entropy(tp.ranks(), net(x).flatten(0, 1), y.flatten(), kWords);
        });
        EXPECT_NEAR(loss, expected, 1e-9);
      }
      EXPECT_NEAR(tp.clip_grad_norm(1).item<double>(),
                  optim::clip_grad_norm(plain.parameters(), 1).item<double>(), 1e-9);
      expect_close(tp.state_dict(), plain.state_dict());
    });
  }
}

// Several tensors attend, with a mask of keys; the result is that of one process.
TEST_F(TensorParallelTest, AttentionToOtherTensors) {
  struct Cross : nn::Module<Cross> {
    Cross() { to(DType::f64); }
    Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask) const {
      return attention(q, k, v, {.key_padding_mask = mask, .need_weights = false}).output;
    }
    nn::MultiheadAttention attention = child("attention", nn::MultiheadAttention(kWidth, kHeads));
  };
  for (const bool sequence : {false, true}) {
    comm::run_ranks(2, [&](comm::ProcessGroup& group) {
      Cross plain = testing::seeded(3, [] { return Cross(); });
      Cross cut = testing::seeded(3, [] { return Cross(); });
      HeadParallel style;
      if (sequence) style = {.input = Shard{0}, .output = Shard{0}};
      const Parallelized tp = parallelize(cut, group, {{"attention", style}});
      manual_seed(5);
      const Tensor q = randn({4, 3, kWidth}, DType::f64), k = randn({6, 3, kWidth}, DType::f64);
      const Tensor v = randn({6, 3, kWidth}, DType::f64);
      Tensor mask = zeros({3, 6}, DType::boolean);
      mask.select(0, 1).narrow(0, 4, 2).fill_(1);
      const auto own = [&](const Tensor& x) {
        return sequence ? x.chunk(2)[static_cast<std::size_t>(group.rank())] : x;
      };
      Tensor expected = plain(q, k, v, mask);
      Tensor got = cut(own(q), own(k), own(v), mask);
      EXPECT_LE(testing::relative_difference(got, own(expected)), 1e-12);
      // One tensor for key and value stays one: its gradient counts both.
      const Tensor x = k.detach().clone(), y = own(k).clone();
      x.set_requires_grad(), y.set_requires_grad();
      (plain(q, x, x, mask).square()).sum().backward();
      Tensor loss = cut(own(q), y, y, mask).square().sum();
      loss.backward();
      EXPECT_LE(testing::relative_difference(y.grad(), own(x.grad())), 1e-12);
    });
  }
}

// A container of layers that compute with a part of the sequence, and are trained later.
TEST_F(TensorParallelTest, ASequenceOfLayers) {
  struct Stack : nn::Module<Stack> {
    Stack() { to(DType::f64); }
    Tensor forward(const Tensor& x) const { return out(middle(in(x))); }
    nn::Linear in = child("in", nn::Linear(6, 8, false));
    nn::Sequential middle = child("middle", nn::Sequential{nn::LayerNorm(8), nn::Dropout(0.3)});
    nn::Linear out = child("out", nn::Linear(8, 4));
  };
  comm::run_ranks(2, [&](comm::ProcessGroup& group) {
    Stack plain = testing::seeded(3, [] { return Stack(); });
    Stack net = testing::seeded(3, [] { return Stack(); });
    net.middle.requires_grad(false);
    const Parallelized tp = parallelize(net, group,
                                        {{"in", RowwiseParallel{Replicate{}, Shard{0}}},
                                         {"middle", SequenceParallel{0}},
                                         {"out", ColwiseParallel{Shard{0}, Replicate{}}}});
    net.middle.requires_grad(true);
    for (int i = 0; i < 2; ++i) {
      const Tensor x = batch(i, {8, 6}, DType::f64).x;
      const auto loss = [&](const Stack& model) {
        manual_seed(static_cast<std::uint64_t>(i));
        const Tensor of = model(x).square().sum();
        of.backward();
        return of.item<double>();
      };
      EXPECT_NEAR(loss(net), loss(plain), 1e-9);
    }
    const auto got = net.middle.parameters(), expected = plain.middle.parameters();
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_LE(testing::relative_difference(got[i].grad(), expected[i].grad()), 1e-9);
    }
  });
}

// In bf16 the result has the dtype that it has in one process.
TEST_F(TensorParallelTest, UnderAutocast) {
  comm::run_ranks(2, [&](comm::ProcessGroup& group) {
    const auto make = [] {
      Net net(0);
      net.to(DType::f32);
      return net;
    };
    Net plain = testing::seeded(3, make), net = testing::seeded(3, make);
    const Parallelized tp = parallelize(net, group, plan_of(false));
    const autograd::Autocast autocast(DeviceType::cpu);
    const Block &block = net.blocks[0], &whole = plain.blocks[0];
    manual_seed(4);
    const Tensor x = randn({2, kLength, kWidth});
    const Tensor y = block.fc2(block.fc1(x)), expected = whole.fc2(whole.fc1(x));
    EXPECT_EQ(y.dtype(), expected.dtype());
    // The ranks' parts of a sum are rounded to 8 bits.
    EXPECT_LE(testing::relative_difference(y.to(DType::f32), expected.to(DType::f32)), 0.02);
    EXPECT_EQ(block.attention(x).dtype(), whole.attention(x).dtype());
    EXPECT_LE(testing::relative_difference(block.attention(x).to(DType::f32),
                                           whole.attention(x).to(DType::f32)),
              0.02);
    (y * y).sum().backward();
    (expected * expected).sum().backward();
    const std::int64_t half = kWidth;  // this rank's fc1 outputs
    EXPECT_LE(
        testing::relative_difference(block.fc1.weight.grad(),
                                     whole.fc1.weight.grad().narrow(0, group.rank() * half, half)),
        0.05);
  });
}

// Outputs that every rank gets whole, though the number of ranks does not divide the features.
TEST_F(TensorParallelTest, LogitsCanBeGathered) {
  for (const int n : {1, 2, 4}) {
    comm::run_ranks(n, [&](comm::ProcessGroup& group) {
      Net plain = testing::seeded(3, [] { return Net(0); });
      Net net = testing::seeded(3, [] { return Net(0); });
      const auto tp = parallelize(net, group,
                                  {{"words", VocabParallel{}},
                                   {"head", VocabParallel{.output = Replicate{}}},
                                   {"blocks.0.fc1", ColwiseParallel{.output = Replicate{}}},
                                   {"blocks.0.fc2", RowwiseParallel{.input = Replicate{}}}});
      optim::SGD sgd(net.parameters(), {.lr = 0.1}), plain_sgd(plain.parameters(), {.lr = 0.1});
      for (int i = 0; i < 3; ++i) {
        const double expected = step(plain_sgd, [&] { return loss_of_all(plain, text(i)); });
        EXPECT_NEAR(step(sgd, [&] { return loss_of_all(net, text(i)); }), expected, 1e-12);
      }
      expect_close(tp.state_dict(), plain.state_dict());
    });
  }
}

// --- Context parallel ------------------------------------------------------------------------------

// dp 2 x cp n: each rank has a part of each sequence of its batch, and the mean is over all ranks.
TEST_F(TensorParallelTest, PartsOfSequencesAreOneProcess) {
  for (const int dp : {1, 2}) {
    for (const int n : {1, 2, 4}) {
      for (const double p : {0.0, 0.2}) {
        if (dp * n > 4 || (dp > 1 && p > 0)) continue;  // ranks of other batches draw others
        SCOPED_TRACE(::testing::Message() << dp << ' ' << n << ' ' << p);
        comm::run_ranks(dp * n, [&](comm::ProcessGroup& group) {
          const comm::Mesh mesh(
              std::shared_ptr<comm::ProcessGroup>(std::shared_ptr<void>(), &group),
              {{"dp", dp}, {"cp", n}});
          Net plain = testing::seeded(3, [&] { return Net(p); });
          Net net = testing::seeded(3, [&] { return Net(p); });
          context_parallel(net, *mesh["cp"]);
          net.checkpointed = dp == 1;
          net.first_place = mesh.coordinate("cp") * (kLength / n);
          DistributedDataParallel ddp(net, group.duplicate());
          optim::SGD sgd(net.parameters(), {.lr = 0.1, .momentum = 0.9});
          optim::SGD plain_sgd(plain.parameters(), {.lr = 0.1, .momentum = 0.9});
          for (int i = 0; i < 5; ++i) {
            const auto [x, y] = text(i);
            manual_seed(static_cast<std::uint64_t>(i));
            const double expected = step(plain_sgd, [&] { return loss_of_all(plain, {x, y}); });
            const std::string drawn = generators();
            const auto own = [&](const Tensor& all) {
              return part_of_sequence(part_of_sequence(all, *mesh["dp"], 0), *mesh["cp"], 1);
            };
            manual_seed(static_cast<std::uint64_t>(i));
            const Tensor loss =
                scalar(step(sgd,
                            [&] {
                              const Tensor logits = ddp(own(x));
                              return nn::cross_entropy(logits.flatten(0, 1), own(y).flatten());
                            }),
                       DType::f64);
            group.all_reduce(loss, comm::ReduceOp::avg).wait();
            EXPECT_NEAR(loss.item<double>(), expected, 1e-9);
            EXPECT_EQ(generators(), drawn);
          }
          expect_close(net.state_dict(), plain.state_dict());
        });
      }
    }
  }
}

// [L,N,E] with dropout, another length of the keys, causal, without a batch, and a clone.
TEST_F(TensorParallelTest, AttentionOfPartsInEveryForm) {
  struct Forms : nn::Module<Forms> {
    Forms() { to(DType::f64); }
    Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v) const {
      const AttentionResult y = attention(q, k, v, {.is_causal = true, .need_weights = false});
      return drop(y.output);
    }
    nn::MultiheadAttention attention =
        child("attention", nn::MultiheadAttention(kWidth, kHeads, {.dropout = 0.3}));
    nn::Dropout drop = child("drop", nn::Dropout(0.3));
  };
  comm::run_ranks(2, [&](comm::ProcessGroup& group) {
    Forms plain = testing::seeded(3, [] { return Forms(); });
    Forms cut = testing::seeded(3, [] { return Forms(); });
    context_parallel(cut, group, 0);
    const auto own = [&](const Tensor& x) { return part_of_sequence(x, group, 0); };
    const Forms copy = nn::clone(cut);
    for (const Forms* const net : {&std::as_const(cut), &copy}) {
      for (const Shape& batch : {Shape{3, kWidth}, Shape{kWidth}}) {
        const auto draw = [&](std::int64_t length) {
          Shape shape = batch;
          shape.insert(0, length);
          return randn(shape, DType::f64);
        };
        manual_seed(5);
        const Tensor q = draw(4), k = draw(6), v = draw(6);
        const Tensor x = q.detach().clone(), y = own(q).clone();
        x.set_requires_grad(), y.set_requires_grad();
        manual_seed(6);
        const Tensor expected = plain(x, k, v);
        manual_seed(6);
        const Tensor got = (*net)(y, own(k), own(v));
        EXPECT_LE(testing::relative_difference(got, own(expected)), 1e-12);
        expected.square().sum().backward();
        got.square().sum().backward();
        EXPECT_LE(testing::relative_difference(y.grad(), own(x.grad())), 1e-12);
      }
    }
    cut.eval(), plain.eval();
    const NoGrad no_grad;
    const Tensor x = randn({4, 3, kWidth}, DType::f64);
    EXPECT_LE(testing::relative_difference(cut(own(x), own(x), own(x)), own(plain(x, x, x))),
              1e-12);
  });
}

TEST_F(TensorParallelTest, PartsOfSequencesThatCannotBe) {
  comm::run_ranks(3, [](comm::ProcessGroup& group) {
    Net net;
    EXPECT_WEFT_ERROR(context_parallel(net, group), InvalidArgument,
                      "blocks.0.attention has 4 heads, which do not divide by 3 ranks");
    nn::Linear layer(2, 2);
    EXPECT_WEFT_ERROR(context_parallel(layer, group), InvalidArgument,
                      "Linear has no nn::MultiheadAttention");
    EXPECT_WEFT_ERROR(part_of_sequence(zeros({2, 4}), group, 1), Shape,
                      "dimension 1 of [2,4] does not divide into 3 parts");
  });
  comm::run_ranks(2, [](comm::ProcessGroup& group) {
    Net net;
    context_parallel(net, group);
    EXPECT_WEFT_ERROR(context_parallel(net, group), InvalidArgument,
                      "blocks.0.attention shares its heads or sequences with other ranks already");
    const Tensor x = zeros({2, 4, kWidth}, DType::f64);
    const nn::MultiheadAttention& attention = net.blocks[0].attention;
    EXPECT_WEFT_ERROR(attention(x, x, x), Unsupported,
                      "returns no weights: call it with .need_weights = false");
    EXPECT_WEFT_ERROR(attention(x, {.attn_mask = zeros({4, 4})}), Unsupported,
                      "after context_parallel an attention takes no mask but is_causal");
    EXPECT_WEFT_ERROR(parallelize(net, group, plan_of(false)), InvalidArgument,
                      "blocks.0.attention shares its heads or sequences with other ranks already");
    EXPECT_WEFT_ERROR(parallelize(net, group, {{"blocks.*.drop2", DropoutParallel{}}}),
                      InvalidArgument, "blocks.0.drop2 draws a part of a mask already");
    nn::Sequential mixed{nn::MultiheadAttention(4, 2), nn::BatchNorm1d(3)};
    EXPECT_WEFT_ERROR(context_parallel(mixed, group), InvalidArgument,
                      "1 is a BatchNorm1d, which cannot compute with a part of a sequence");
  });
}

// --- Costs ---------------------------------------------------------------------------------------

// A ring's all-reduce of B bytes sends 2 (n - 1) / n B a rank, a gather of B bytes, or a
// reduce-scatter, (n - 1) / n B; a short all-reduce (n - 1) B, in one round.
TEST_F(TensorParallelTest, ABlockSendsFourSums) {
  for (const bool sequence : {false, true}) {
    for (const int n : {2, 4}) {
      SCOPED_TRACE(::testing::Message() << n << ' ' << sequence);
      comm::testing::in_groups("ring", n, [&, n = n](comm::ProcessGroup& group) {
        const auto make = [] {
          Block block(0);
          block.to(DType::f64);
          return block;
        };
        Block block = testing::seeded(3, make);
        const Layout layout = sequence ? Layout(Shard{1}) : Layout(Replicate{});
        ParallelPlan plan = {{"attention", HeadParallel{layout, layout}},
                             {"fc1", ColwiseParallel{.input = layout}},
                             {"fc2", RowwiseParallel{.output = layout}}};
        if (sequence) plan.push_back({"norm*", SequenceParallel{}});
        const Parallelized tp = parallelize(block, group, plan);
        constexpr std::int64_t kBatch = 128, all = kBatch * kLength * kWidth * 8;
        const auto run = [&] {
          manual_seed(4);
          Tensor x = randn({kBatch, kLength, kWidth}, DType::f64);
          if (sequence) x = x.chunk(n, 1)[static_cast<std::size_t>(group.rank())].clone();
          x.set_requires_grad();
          block(x).sum().backward();
        };
        run();  // compares arguments and gradients
        const comm::Traffic before = tp.traffic();
        run();
        const std::int64_t sent = tp.traffic().bytes_sent - before.bytes_sent;
        // With sequence parallel: the gradients of 2 norms' weights and biases, and of 2 biases
        // behind sums, each of kWidth numbers.
        const std::int64_t vectors = sequence ? 6 * (n - 1) * kWidth * 8 : 0;
        const std::int64_t sums = (n - 1) * (sequence ? 8 * all / n : 4 * 2 * all / n);
        EXPECT_EQ(sent, sums + vectors);
      });
    }
  }
}

struct Ends : nn::Module<Ends> {
  nn::Embedding words = child("words", nn::Embedding(kWords, kWidth));
  nn::Linear head = child("head", nn::Linear(kWidth, kWords));
  Tensor forward(const Tensor& text) const { return head(words(text)); }
};

// The table sums its rows in forward, the head its input's gradients in backward; with sequence
// parallel each of them gathers and scatters. The loss sends three numbers for each place of the
// text: a maximum, and two sums. Logits would be kWords numbers.
TEST_F(TensorParallelTest, TheTableTheHeadAndTheLossSendNoLogits) {
  for (const bool sequence : {false, true}) {
    for (const int n : {2, 4}) {
      SCOPED_TRACE(::testing::Message() << n << ' ' << sequence);
      comm::testing::in_groups("ring", n, [&, n = n](comm::ProcessGroup& group) {
        const Ends ends = testing::seeded(3, [] {
          Ends made;
          made.to(DType::f64);
          return made;
        });
        const Layout layout = sequence ? Layout(Shard{1}) : Layout(Replicate{});
        const Parallelized tp = parallelize(
            ends, group,
            {{"words", VocabParallel{.output = layout}}, {"head", VocabParallel{.input = layout}}});
        constexpr std::int64_t kPlaces = 128 * kLength, all = kPlaces * kWidth * 8;
        const Tensor x = arange(0, kPlaces).remainder(kWords).to(DType::i64).view({128, kLength});
        const auto run = [&] {
          const Tensor logits = ends(x).flatten(0, 1);
          EXPECT_LT(logits.shape(1), kWords);
          cross_entropy(tp.ranks(), logits, x.flatten(), kWords).backward();
        };
        run();  // compares arguments and gradients
        const comm::Traffic before = tp.traffic();
        run();
        const std::int64_t sent = tp.traffic().bytes_sent - before.bytes_sent;
        const std::int64_t of_loss = (n - 1) * 3 * kPlaces * 8;
        EXPECT_EQ(sent, (n - 1) * 4 * all / n + of_loss);
      });
    }
  }
}

// --- The loss ------------------------------------------------------------------------------------

TEST_F(TensorParallelTest, TheLossIsCrossEntropy) {
  using Options = VocabCrossEntropyOptions;
  for (const std::int64_t classes : {1, 5, 9}) {
    for (const int n : {1, 2, 4}) {
      for (const auto reduction :
           {weft::Reduction::mean, weft::Reduction::sum, weft::Reduction::none}) {
        SCOPED_TRACE(::testing::Message() << classes << ' ' << n);
        comm::run_ranks(n, [&](comm::ProcessGroup& group) {
          const Collectives ranks(group.duplicate());
          manual_seed(1);
          const Tensor logits = randn({6, classes}, DType::f64) * 30;
          const Tensor target =
              from_vector<std::int64_t>({0, classes - 1, classes / 2, -7, 0, -7}, {6});
          const nn::Cut cut{
              .whole = {6, classes}, .dim = 1, .rank = group.rank(), .size = group.size()};
          const Tensor x = logits.detach().clone(), part = cut.part_of(logits).clone();
          x.set_requires_grad(), part.set_requires_grad();
          const Tensor expected =
              nn::cross_entropy(x, target, {.ignore_index = -7, .reduction = reduction});
          const Tensor got = cross_entropy(ranks, part, target, classes, Options{-7, reduction});
          EXPECT_LE(testing::relative_difference(got, expected), 1e-12);
          (expected * expected).sum().backward();
          (got * got).sum().backward();
          if (part.numel() > 0) {
            EXPECT_LE(testing::relative_difference(part.grad(), cut.part_of(x.grad())), 1e-12);
          }
        });
      }
    }
  }
}

TEST_F(TensorParallelTest, TheLossRefusesWhatIsNoTarget) {
  comm::run_ranks(2, [&](comm::ProcessGroup& group) {
    const Collectives ranks(group.duplicate());
    const Tensor logits = zeros({2, group.rank() ? 2 : 3});
    const auto loss = [&](const Tensor& x, const std::vector<std::int64_t>& target) {
      return cross_entropy(ranks, x, from_vector(target, {std::ssize(target)}), 5);
    };
    EXPECT_NEAR(loss(logits, {4, 0}).item<double>(), std::log(5.0), 1e-6);
    EXPECT_TRUE(std::isnan(loss(logits, {-100, -100}).item<double>()));
    for (const std::int64_t wrong : {-1, 5}) {
      EXPECT_WEFT_ERROR(loss(logits, {0, wrong}), InvalidArgument,
                        "a target is no class: expected 0 to 4");
    }
    EXPECT_WEFT_ERROR(loss(zeros({2, 4}), {0, 0}), Shape, "its part of 5 classes");
    EXPECT_WEFT_ERROR(loss(logits, {0}), Shape, "one class for each row of logits");
    EXPECT_WEFT_ERROR(cross_entropy(ranks, logits, zeros({2}), 5), Dtype, "expected i64");
    EXPECT_WEFT_ERROR(cross_entropy(ranks, logits, zeros({2}, DType::i64), 0), InvalidArgument,
                      "got 0 classes");
    EXPECT_EQ(loss(logits.to(DType::bf16), {4, 0}).dtype(), DType::f32);
  });
}

}  // namespace
}  // namespace weft::parallel
