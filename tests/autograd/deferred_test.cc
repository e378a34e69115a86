#include "weft/autograd/deferred.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/autograd/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft::autograd {
namespace {

using testing::some;
using testing::values_of;

struct Layer {
  std::string name;
  Shape x;
  std::vector<Shape> weights;
  std::function<Tensor(const Tensor& x, const std::vector<Tensor>& w)> forward;
};

const std::vector<Layer>& layers() {
  static const std::vector<Layer> all = {
      {"linear", {3, 4}, {{5, 4}, {5}}, [](auto& x, auto& w) { return linear(x, w[0], w[1]); }},
      {"linear without bias",
       {3, 4},
       {{5, 4}},
       [](auto& x, auto& w) { return linear(x, w[0], {}); }},
      {"matmul", {2, 3, 4}, {{4, 5}}, [](auto& x, auto& w) { return matmul(x, w[0]); }},
      {"conv2d",
       {2, 3, 6, 6},
       {{4, 3, 3, 3}, {4}},
       [](auto& x, auto& w) { return conv2d(x, w[0], w[1]); }},
      {"conv2d without bias", {2, 3, 6, 6}, {{4, 3, 3, 3}}, [](auto& x, auto& w) {
         return conv2d(x, w[0]);
       }}};
  return all;
}

// The gradients of x and the weights.
struct Leaves {
  explicit Leaves(const Layer& layer) : x(some(layer.x).set_requires_grad()) {
    for (const Shape& shape : layer.weights) w.push_back(some(shape).set_requires_grad());
  }
  Tensor x;
  std::vector<Tensor> w;
};

TEST(DeferredGradients, OfWeightsComeLaterWithTheSameBits) {
  const Scoped deterministic(&ThreadState::deterministic, true);
  for (const Layer& layer : layers()) {
    SCOPED_TRACE(layer.name);
    const Leaves at_once(layer), later(layer);
    Tensor y = layer.forward(at_once.x, at_once.w);
    const Tensor gradient = some(y.shape(), DType::f32, -1, 1, 7);
    y.backward(gradient);

    DeferredGradients of_weights;
    y = layer.forward(later.x, later.w);
    {
      const auto weights = DeferredGradients::leaves(later.w);
      const DeferredGradients::Scope putting_off(of_weights, weights);
      y.backward(gradient);
    }
    y = Tensor();  // the remaining work keeps what it needs
    EXPECT_EQ(values_of(later.x.grad()), values_of(at_once.x.grad()));
    for (const Tensor& w : later.w) EXPECT_FALSE(w.grad().defined());
    EXPECT_GT(of_weights.size(), 0u);
    of_weights.run();
    EXPECT_EQ(of_weights.size(), 0u);
    for (std::size_t i = 0; i < later.w.size(); ++i) {
      EXPECT_EQ(values_of(later.w[i].grad()), values_of(at_once.w[i].grad()));
    }
    of_weights.run();  // nothing
    EXPECT_EQ(values_of(later.w[0].grad()), values_of(at_once.w[0].grad()));
  }
}

TEST(DeferredGradients, AreAddedToWhatIsThere) {
  const Tensor x = ones({1, 2}).set_requires_grad(), w = ones({1, 2}).set_requires_grad();
  DeferredGradients of_weights;
  {
    const auto weights = DeferredGradients::leaves({{w}});
    const DeferredGradients::Scope putting_off(of_weights, weights);
    for (int i = 0; i < 3; ++i) linear(x, w, {}).sum().backward();
  }
  linear(x, w, {}).sum().backward();  // at once, outside the scope
  EXPECT_EQ(values_of(w.grad()), (std::vector<double>{1, 1}));
  of_weights.run();
  EXPECT_EQ(values_of(w.grad()), (std::vector<double>{4, 4}));
}

// Only the given leaves wait: the backward needs the other gradients to go on.
TEST(DeferredGradients, OthersAreNotPutOff) {
  const Tensor x = ones({1, 2}).set_requires_grad(), v = ones({1, 2}).set_requires_grad(),
               other = ones({1, 2}).set_requires_grad();
  DeferredGradients of_weights;
  {
    const auto weights = DeferredGradients::leaves({{v}});
    const DeferredGradients::Scope putting_off(of_weights, weights);
    (linear(x, v * 2, {}) + linear(x, other, {})).sum().backward();
  }
  EXPECT_EQ(of_weights.size(), 0u);
  EXPECT_EQ(values_of(v.grad()), (std::vector<double>{2, 2}));
  EXPECT_EQ(values_of(other.grad()), (std::vector<double>{1, 1}));
}

// A weight and its bias get their gradients together only if both come at the same time.
TEST(DeferredGradients, OfAWeightWithoutThatOfItsBias) {
  for (const std::size_t which : {0, 3}) {
    const Layer& layer = layers()[which];
    for (const std::size_t later : {0, 1}) {
      const Leaves expected(layer), got(layer);
      layer.forward(expected.x, expected.w).sum().backward();
      DeferredGradients of_one;
      {
        const auto one = DeferredGradients::leaves({{got.w[later]}});
        const DeferredGradients::Scope putting_off(of_one, one);
        layer.forward(got.x, got.w).sum().backward();
      }
      EXPECT_EQ(of_one.size(), 1u);
      EXPECT_FALSE(got.w[later].grad().defined());
      EXPECT_TRUE(got.w[1 - later].grad().defined());
      of_one.run();
      for (std::size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(values_of(got.w[i].grad()), values_of(expected.w[i].grad())) << layer.name;
      }
    }
  }
}

// A bias that an operation has made is no leaf, so its gradient is due at once.
TEST(DeferredGradients, OfAWeightBesideAComputedBias) {
  const Layer& layer = layers()[3];
  const Leaves leaves(layer);
  DeferredGradients of_weight;
  {
    const auto weight = DeferredGradients::leaves({{leaves.w[0]}});
    const DeferredGradients::Scope putting_off(of_weight, weight);
    layer.forward(leaves.x, {leaves.w[0], leaves.w[1] * 2}).sum().backward();
  }
  // 2 for each of 2 images of 4x4 pixels.
  EXPECT_EQ(values_of(leaves.w[1].grad()), std::vector<double>(4, 64));
  EXPECT_FALSE(leaves.w[0].grad().defined());
  of_weight.run();
  EXPECT_TRUE(leaves.w[0].grad().defined());
}

}  // namespace
}  // namespace weft::autograd
