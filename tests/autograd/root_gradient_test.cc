// On a GPU all backwards share the gradient with which they begin. Gradients that they leave, and
// what a hook does to it, must not change it for others.
#include <gtest/gtest.h>

#include <span>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/autograd/function.h"
#include "weft/autograd/grad.h"
#include "weft/autograd/ops.h"
#include "weft/core/runtime/capture.h"
#include "weft/tensor/creation.h"
#include "weft/tests/device_param.h"

namespace weft {
namespace {

class RootGradient : public testing::DeviceParam {
 protected:
  static Tensor leaf(double value, DType dtype = DType::f32) {
    return full({1}, value, dtype).set_requires_grad();
  }
  /// The gradient that a backward begins with.
  static double root(DType dtype = DType::f32) {
    const Tensor x = leaf(3, dtype);
    (x * 2).backward();
    return x.grad().to(Device()).to(DType::f64).item<double>() / 2;
  }
};
WEFT_FOR_EACH_DEVICE(RootGradient);

// This test comes first: there is no shared one yet, and the backward that is captured must not
// make it.
TEST_P(RootGradient, InACapturedStep) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const Tensor x = leaf(2, dtype);
    int call = 0;
    auto step = graph::capture(device(), [&] {
      autograd::zero_grad(x);
      const Tensor y = x * x;
      if (call++ > 0) {
        y.backward();
      } else {
        y.backward(ones_like(y));
      }
    });
    for (int i = 0; i < 4; ++i) {
      step();
      EXPECT_EQ(x.grad().to(DType::f64).item<double>(), 4);
    }
    EXPECT_EQ(root(dtype), 1);
    step();
    EXPECT_EQ(x.grad().to(DType::f64).item<double>(), 4);
  }
}

TEST_P(RootGradient, IsOneOfEachDtypeAndShape) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    for (int i = 0; i < 2; ++i) EXPECT_EQ(root(dtype), 1);
    const Tensor x = full({1, 1, 1}, 2, dtype).set_requires_grad();
    x.backward();
    EXPECT_EQ(x.grad().shape(), x.shape());
    EXPECT_EQ(x.grad().dtype(), dtype);
  }
}

TEST_P(RootGradient, WhatALeafGetsIsItsOwn) {
  const Tensor x = leaf(1), y = leaf(1);
  x.backward();
  y.view({}).backward();
  x.backward();
  EXPECT_EQ(x.grad().item<float>(), 2);
  raw::fill_(x.grad(), 7);
  raw::mul_(y.grad(), 5);
  EXPECT_EQ(y.grad().item<float>(), 5);
  EXPECT_EQ(root(), 1);
}

TEST_P(RootGradient, WhatGradReturnsIsItsOwn) {
  const Tensor x = leaf(1), y = x * 3;
  const Tensor own = autograd::grad(y, y, {.retain_graph = true});
  const Tensor other = autograd::grad(y, y, {.retain_graph = true});
  raw::fill_(own, 7);
  EXPECT_EQ(other.item<float>(), 1);
  EXPECT_EQ(root(), 1);
  EXPECT_EQ(autograd::grad(y, x).item<float>(), 3);
}

TEST_P(RootGradient, WhatAHookWritesEndsWithItsBackward) {
  const Tensor x = leaf(1);
  for (int i = 1; i <= 2; ++i) {
    const Tensor y = x * 3;
    autograd::add_grad_hook(y, [](const Tensor& g) {
      raw::mul_(g, 10);
      return Tensor();
    });
    y.backward();
    EXPECT_EQ(x.grad().item<float>(), 30 * i);
    EXPECT_EQ(root(), 1);
  }
}

TEST_P(RootGradient, WhatAHookWritesIsNotTheOtherRoots) {
  const Tensor x = leaf(1), y = x * 3, z = (x * 5).view({1, 1});
  for (const Tensor& hooked : {y, z}) {
    autograd::add_grad_hook(hooked, [](const Tensor& g) {
      raw::mul_(g, 10);
      return Tensor();
    });
    const std::vector<Tensor> roots = {y, z};
    autograd::zero_grad(x);
    autograd::backward(roots, {}, true);
    EXPECT_EQ(x.grad().item<float>(), hooked.dim() == 1 ? 35 : 80);
  }
  EXPECT_EQ(root(), 1);
}

struct Tenfold : autograd::Function<Tenfold> {
  static Tensor forward(autograd::Context&, const Tensor& x) { return x * 10; }
  static std::vector<Tensor> backward(autograd::Context&, std::span<const Tensor> grads) {
    raw::mul_(grads[0], 10);  // nobody else may see it
    return {grads[0]};
  }
};

TEST_P(RootGradient, WhatAUsersRuleWritesEndsWithItsBackward) {
  const Tensor x = leaf(1);
  for (int i = 1; i <= 2; ++i) {
    Tenfold::apply(x).backward();
    EXPECT_EQ(x.grad().item<float>(), 10 * i);
    EXPECT_EQ(root(), 1);
  }
}

TEST_P(RootGradient, OfSeveralRootsAndOfTwoBackwardsAddUp) {
  const Tensor x = leaf(1), y = x * 3;
  const std::vector<Tensor> roots = {y, y, y * 1};
  autograd::backward(roots, {}, true);
  EXPECT_EQ(x.grad().item<float>(), 9);
  y.backward({}, true);
  y.backward();
  EXPECT_EQ(x.grad().item<float>(), 15);
  const Tensor z = x * x;
  z.backward({}, true, true);  // it can be differentiated again
  EXPECT_EQ(x.grad().item<float>(), 17);
  EXPECT_EQ(root(), 1);
}

}  // namespace
}  // namespace weft
