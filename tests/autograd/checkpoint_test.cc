// Recomputation: the same gradients as without it, in less memory.
#include "weft/autograd/checkpoint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <thread>

#include "weft/autograd/autograd.h"
#include "weft/autograd/grad.h"
#include "weft/autograd/ops.h"
#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/rng.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using autograd::checkpoint;
using testing::some;
using testing::values_of;

// A layer that keeps much memory: three results, a random mask among them.
struct Layer {
  Tensor weight;
  int runs = 0, recomputations = 0;
  std::vector<std::vector<double>> masks;

  explicit Layer(std::uint64_t seed)
      : weight(some({16, 16}, DType::f32, -0.5, 0.5, seed).set_requires_grad()) {}

  Tensor operator()(const Tensor& x) {
    ++runs;
    recomputations += autograd::recomputing();
    const Tensor mask = bernoulli(x.shape(), 0.5);
    masks.push_back(values_of(mask));
    return tanh(matmul(x, weight)) * mask + exp(x * 0.1);
  }
};

std::vector<std::vector<double>> gradients(bool recompute, std::vector<Layer>& layers,
                                           bool input_requires = true) {
  manual_seed(3);
  const Tensor x = some({8, 16}, DType::f32, -1, 1, 99);
  if (input_requires) x.set_requires_grad();
  Tensor y = x;
  for (Layer& layer : layers) {
    y = recompute ? checkpoint([&layer](const Tensor& in) { return layer(in); }, y) : layer(y);
  }
  square(y).sum().backward();
  std::vector<std::vector<double>> result{values_of(y)};
  if (input_requires) result.push_back(values_of(x.grad()));
  for (const Layer& layer : layers) result.push_back(values_of(layer.weight.grad()));
  return result;
}

TEST(CheckpointTest, GivesTheSameGradientsBitForBit) {
  for (const bool input_requires : {true, false}) {
    std::vector<Layer> plain{Layer(1), Layer(2), Layer(3)}, checked{Layer(1), Layer(2), Layer(3)};
    EXPECT_EQ(gradients(true, checked, input_requires), gradients(false, plain, input_requires));
    for (std::size_t i = 0; i < plain.size(); ++i) {
      EXPECT_EQ(checked[i].runs, 2);
      EXPECT_EQ(checked[i].recomputations, 1);
      EXPECT_EQ(checked[i].masks[0], checked[i].masks[1]);
      EXPECT_EQ(checked[i].masks[0], plain[i].masks[0]);
    }
  }
}

TEST(CheckpointTest, LeavesTheGeneratorWhereTheForwardDid) {
  std::vector<Layer> layers{Layer(1), Layer(2)};
  gradients(false, layers);
  const std::uint32_t next = default_generator().random32();
  gradients(true, layers);
  EXPECT_EQ(default_generator().random32(), next);
}

TEST(CheckpointTest, KeepsOnlyTheInputs) {
  const auto live_after_forward = [](bool recompute) {
    const Tensor x = some({256, 256}).set_requires_grad();
    const auto f = [](const Tensor& in) { return tanh(exp(sigmoid(exp(in * 0.1)))); };
    const std::int64_t before = memory_stats(Device()).in_use_bytes;
    const Tensor y = recompute ? checkpoint(f, x) : f(x);
    const std::int64_t after = memory_stats(Device()).in_use_bytes;
    y.sum().backward();
    return (after - before) / static_cast<std::int64_t>(256 * 256 * sizeof(float));
  };
  EXPECT_EQ(live_after_forward(false), 4);  // all except in * 0.1, whose rule needs nothing
  EXPECT_EQ(live_after_forward(true), 1);
}

TEST(CheckpointTest, SeveralInputsAndResults) {
  const Tensor a = testing::make({1, 2}, {2}, DType::f64).set_requires_grad();
  const Tensor b = testing::make({3, 4}, {2}, DType::f64);
  const Tensor c = testing::make({5, 6}, {2}, DType::f64).set_requires_grad();
  const auto f = [](const Tensor& x, const Tensor& y, const Tensor& z, const Tensor& none) {
    EXPECT_FALSE(none.defined());
    return std::vector<Tensor>{x * y, y * 2.0, x * z};
  };
  const std::vector<Tensor> y = checkpoint(f, a, b, c, Tensor());
  (y[0] + y[2]).sum().backward();
  EXPECT_TENSOR(a.grad(), ({2}), {8, 10});
  EXPECT_TENSOR(c.grad(), ({2}), {1, 2});
  EXPECT_FALSE(b.grad().defined());
}

TEST(CheckpointTest, StructuresInAndOut) {
  struct State {
    Tensor h;
    std::vector<Tensor> cells;
    double scale;
    auto tensors() { return std::tie(h, cells); }
  };
  const auto leaf = [](double value) {
    return testing::make({value}, {1}, DType::f64).set_requires_grad();
  };
  const State state{leaf(2), {leaf(3), leaf(5)}, 10};
  const Tensor x = leaf(7);
  int runs = 0;
  const auto f = [&runs](const State& in, const std::pair<Tensor, int>& factor) {
    ++runs;
    return std::pair<State, Tensor>{{in.h * factor.first, {in.cells[0] * factor.second}, 0},
                                    in.cells[1] * in.scale};
  };
  const auto [next, y] = checkpoint(f, state, std::pair{x, 4});
  (next.h + next.cells[0] + y).sum().backward();
  EXPECT_EQ(runs, 2);
  EXPECT_TENSOR(state.h.grad(), ({1}), {7});
  EXPECT_TENSOR(x.grad(), ({1}), {2});
  EXPECT_TENSOR(state.cells[0].grad(), ({1}), {4});
  EXPECT_TENSOR(state.cells[1].grad(), ({1}), {10});
}

// Tensors in a structure are freed with the tape, like other inputs.
TEST(CheckpointTest, KeepsNoInputBehindTheTape) {
  std::vector<Tensor> inputs{testing::make({1}, {1}).set_requires_grad() * 2.0};
  const intrusive_ptr<Storage> storage = inputs[0].storage();
  const Tensor y = checkpoint([](const std::vector<Tensor>& x) { return exp(x[0]); }, inputs);
  inputs.clear();
  y.backward();
  EXPECT_EQ(storage->use_count(), 1u);
}

TEST(CheckpointTest, NestsAndRunsAgainWithARetainedGraph) {
  const Tensor x = testing::make({0.5}, {1}, DType::f64).set_requires_grad();
  const auto inner = [](const Tensor& in) { return exp(in); };
  const auto outer = [&](const Tensor& in) { return checkpoint(inner, in * 2.0) * in; };
  const Tensor y = checkpoint(outer, x);
  const double once = std::exp(1.0) * 2;  // (2x + 1) e^2x
  y.backward({}, true);
  EXPECT_NEAR(x.grad().item<double>(), once, 1e-14);
  y.backward();
  EXPECT_NEAR(x.grad().item<double>(), 2 * once, 1e-14);
  EXPECT_WEFT_ERROR(y.backward(), InvalidArgument, "[checkpoint] an earlier backward freed");
}

TEST(CheckpointTest, GradLeavesParametersAlone) {
  const Tensor x = testing::make({0.5}, {1}, DType::f64).set_requires_grad();
  const Tensor w = testing::make({3}, {1}, DType::f64).set_requires_grad();
  const Tensor y = checkpoint([&](const Tensor& in) { return in * w; }, x * 2.0);
  EXPECT_TENSOR(autograd::grad({&y, 1}, {&x, 1})[0], ({1}), {6});
  EXPECT_FALSE(w.grad().defined());
}

TEST(CheckpointTest, AResultMayBeTheInput) {
  const Tensor x = testing::make({2}, {1}, DType::f64).set_requires_grad();
  const Tensor y = checkpoint([](const Tensor& in) { return in; }, x);
  EXPECT_TRUE(x.is_leaf());
  (y * 3.0).backward();
  EXPECT_TENSOR(x.grad(), ({1}), {3});
}

TEST(CheckpointTest, WithoutGradientsItIsTheFunction) {
  const NoGrad no_grad;
  const Tensor x = testing::make({2}, {1}).set_requires_grad();
  EXPECT_FALSE(checkpoint([](const Tensor& in) { return in * 2.0; }, x).requires_grad());
}

TEST(CheckpointTest, WatchesItsInputs) {
  const Tensor x = testing::make({2}, {1}).set_requires_grad();
  const Tensor before = x * 2.0;
  const Tensor y = checkpoint([](const Tensor& in) { return in * in; }, before);
  before.mul_(2);
  EXPECT_WEFT_ERROR(y.backward(), InvalidArgument, "was changed in place");
}

// State that affects values is that of the forward. Observers belong to the thread that runs the
// work; those of the forward may no longer exist.
TEST(CheckpointTest, TheSecondForwardReportsToTheThreadThatRunsIt) {
  const Tensor x = some({2, 3}).set_requires_grad();
  const Tensor w = some({3, 4});
  std::int64_t in_forward = 0, in_backward = 0;
  const Tensor y = [&] {
    const Scoped count(&ThreadState::multiply_adds, &in_forward);
    const Scoped deterministic(&ThreadState::deterministic, true);
    return checkpoint(
        [&](const Tensor& in) {
          EXPECT_TRUE(thread_state().deterministic);
          return matmul(in, w);
        },
        x);
  }();
  EXPECT_EQ(in_forward, 2 * 3 * 4);
  const Scoped count(&ThreadState::multiply_adds, &in_backward);
  EXPECT_FALSE(thread_state().deterministic);
  y.sum().backward();
  EXPECT_EQ(in_forward, 2 * 3 * 4);
  EXPECT_EQ(in_backward, 2 * 2 * 3 * 4);  // once more, and dL/dx
}

// --- In two actions ------------------------------------------------------------------------------

TEST(RecomputationTest, ForwardAndBackwardApartGiveTheSameBits) {
  std::vector<Layer> plain{Layer(1), Layer(2)}, apart{Layer(1), Layer(2)};
  const auto expected = gradients(true, plain);

  manual_seed(3);
  const Tensor x = some({8, 16}, DType::f32, -1, 1, 99).set_requires_grad();
  const Tensor h = checkpoint([&](const Tensor& in) { return apart[0](in); }, x);
  const Tensor y = checkpoint([&](const Tensor& in) { return apart[1](in); }, h);
  const Tensor loss = square(y).sum();
  const std::uint32_t next = default_generator().random32();
  // In any order, on any thread, with any state around it.
  for (const Tensor& of : {h, y}) {
    const autograd::Recomputation again(of);
    std::thread([&] {
      const NoGrad no_grad;
      EXPECT_FALSE(again.recomputed());
      again.recompute();
      again.recompute();
      EXPECT_TRUE(again.recomputed());
    }).join();
  }
  EXPECT_EQ(apart[0].runs, 2);
  EXPECT_EQ(apart[1].runs, 2);
  loss.backward();
  EXPECT_EQ(apart[0].runs, 2);
  EXPECT_EQ(apart[1].runs, 2);
  const std::vector<std::vector<double>> got = {values_of(y), values_of(x.grad()),
                                                values_of(apart[0].weight.grad()),
                                                values_of(apart[1].weight.grad())};
  EXPECT_EQ(got, expected);
  manual_seed(3);
  gradients(true, plain);
  EXPECT_EQ(default_generator().random32(), next);
}

TEST(RecomputationTest, EachBackwardOfARetainedTapeNeedsOne) {
  const Tensor x = testing::make({0.5}, {1}, DType::f64).set_requires_grad();
  int runs = 0;
  const Tensor y = checkpoint([&](const Tensor& in) { return ++runs, exp(in); }, x);
  const autograd::Recomputation again(y);
  again.recompute();
  EXPECT_EQ(runs, 2);
  y.backward({}, true);
  EXPECT_EQ(runs, 2);
  EXPECT_FALSE(again.recomputed());
  y.backward({}, true);  // recomputes by itself
  EXPECT_EQ(runs, 3);
  again.recompute();
  EXPECT_EQ(autograd::grad({&y, 1}, {&x, 1})[0].item<double>(), std::exp(0.5));
  EXPECT_EQ(runs, 4);
  EXPECT_WEFT_ERROR(again.recompute(), InvalidArgument, "[checkpoint] an earlier backward freed");
  EXPECT_EQ(x.grad().item<double>(), 2 * std::exp(0.5));
}

TEST(RecomputationTest, HoldsTheTapeUntilItIsUsed) {
  const Tensor x = some({256, 256}).set_requires_grad();
  const auto f = [](const Tensor& in) { return tanh(exp(sigmoid(exp(in * 0.1)))); };
  const auto in_use = [] { return memory_stats(Device()).in_use_bytes; };
  const std::int64_t matrix = 256 * 256 * sizeof(float);
  const Tensor y = checkpoint(f, x);
  const std::int64_t before = in_use();
  autograd::Recomputation(y).recompute();
  EXPECT_EQ(in_use() - before, 4 * matrix);
  y.sum().backward();
  EXPECT_EQ(in_use() - before, matrix);  // x.grad()
}

TEST(RecomputationTest, WhatFailsCanBeTriedAgain) {
  const Tensor x = testing::make({0.5}, {1}, DType::f64).set_requires_grad();
  int runs = 0;
  const Tensor y = checkpoint(
      [&](const Tensor& in) {
        if (++runs == 2) throw std::runtime_error("from the function");
        return exp(in);
      },
      x);
  const autograd::Recomputation again(y);
  EXPECT_THROW(again.recompute(), std::runtime_error);
  EXPECT_FALSE(again.recomputed());
  y.backward();
  EXPECT_EQ(x.grad().item<double>(), std::exp(0.5));
}

TEST(RecomputationTest, OnlyOfACheckpoint) {
  const Tensor x = testing::make({2}, {1}).set_requires_grad();
  EXPECT_WEFT_ERROR(autograd::Recomputation(x * 2.0), InvalidArgument, "is mul's result");
  EXPECT_WEFT_ERROR(autograd::Recomputation{x}, InvalidArgument, "is not on the tape");
  EXPECT_WEFT_ERROR(autograd::Recomputation{Tensor()}, InvalidArgument, "undefined");
}

}  // namespace
}  // namespace weft
