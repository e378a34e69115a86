#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "weft/autograd/autograd.h"
#include "weft/autograd/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::make;

Tensor leaf(double value) { return make({value}, {}, DType::f64).set_requires_grad(); }

TEST(LeafHookTest, OncePerBackwardWhenAllIsIn) {
  const Tensor x = leaf(3);
  std::vector<double> seen;
  autograd::add_leaf_hook(x, [&](const Tensor& t) {
    EXPECT_TRUE(t.same(x));
    seen.push_back(t.grad().item<double>());
  });
  const Tensor h = x * 2.0;
  (h * x + exp(x * 0.0) + x).backward();  // used three times
  EXPECT_EQ(seen, (std::vector<double>{13}));
  (x * 1.0).backward();
  EXPECT_EQ(seen, (std::vector<double>{13, 14}));
}

TEST(LeafHookTest, NotInGradAndNotForUnreached) {
  const Tensor x = leaf(3), other = leaf(1);
  int calls = 0;
  autograd::add_leaf_hook(x, [&](const Tensor&) { ++calls; });
  autograd::add_leaf_hook(other, [&](const Tensor&) { calls += 100; });
  const Tensor y = x * 2.0;
  autograd::grad({&y, 1}, {&x, 1}, {}, true);
  EXPECT_EQ(calls, 0);
  y.backward();
  EXPECT_EQ(calls, 1);
}

TEST(LeafHookTest, InOrderAndRemovable) {
  const Tensor x = leaf(3);
  std::string order;
  auto first = autograd::add_leaf_hook(x, [&](const Tensor&) { order += "a"; });
  autograd::add_leaf_hook(x, [&](const Tensor&) { order += "b"; });
  x.backward();
  EXPECT_EQ(order, "ab");
  first.remove();
  first.remove();
  x.backward();
  EXPECT_EQ(order, "abb");
}

TEST(LeafHookTest, MayRemoveItselfAndAddOthers) {
  const Tensor x = leaf(3);
  int calls = 0;
  autograd::HookHandle handle;
  handle = autograd::add_leaf_hook(x, [&](const Tensor&) {
    ++calls;
    handle.remove();
    autograd::add_leaf_hook(x, [&](const Tensor&) { calls += 10; });
  });
  x.backward();
  x.backward();
  EXPECT_EQ(calls, 21);
}

TEST(LeafHookTest, HandlesOutliveTensors) {
  autograd::HookHandle handle;
  {
    const Tensor x = leaf(3);
    handle = autograd::add_leaf_hook(x, [](const Tensor&) {});
  }
  handle.remove();
}

// Backward hands leaves over in reverse order of use, so that communication can begin early.
TEST(LeafHookTest, LastUsedFirst) {
  const Tensor a = leaf(1), b = leaf(2), c = leaf(3);
  std::string order;
  autograd::add_leaf_hook(a, [&](const Tensor&) { order += "a"; });
  autograd::add_leaf_hook(b, [&](const Tensor&) { order += "b"; });
  autograd::add_leaf_hook(c, [&](const Tensor&) { order += "c"; });
  (((make({1}, {}, DType::f64) * a) * b) * c).backward();
  EXPECT_EQ(order, "cba");
}

TEST(LeafHookTest, OnlyForLeaves) {
  const Tensor x = leaf(3);
  EXPECT_WEFT_ERROR(autograd::add_leaf_hook(x * 2.0, [](const Tensor&) {}), InvalidArgument,
                    "needs a leaf");
}

TEST(HookTest, EmptyOnesAreRefused) {
  const Tensor x = leaf(3);
  EXPECT_WEFT_ERROR(autograd::add_leaf_hook(x, {}), InvalidArgument,
                    "[add_leaf_hook] the hook is empty");
  EXPECT_WEFT_ERROR(autograd::add_grad_hook(x, nullptr), InvalidArgument,
                    "[add_grad_hook] the hook is empty");
  EXPECT_WEFT_ERROR(autograd::add_grad_hook(x * 2.0, {}), InvalidArgument, "the hook is empty");
  int calls = 0;
  autograd::add_leaf_hook(x, [&](const Tensor&) {
    ++calls;
    EXPECT_WEFT_ERROR(autograd::at_backward_end({}), InvalidArgument,
                      "[at_backward_end] the callback is empty");
  });
  (x * 2.0).backward();
  EXPECT_EQ(calls, 1);
}

TEST(GradHookTest, SeesAndReplaces) {
  const Tensor x = leaf(3);
  const Tensor h = x * 2.0;
  std::vector<double> seen;
  auto watch = [&](const Tensor& grad) {
    seen.push_back(grad.item<double>());
    return Tensor();
  };
  autograd::add_grad_hook(h, watch);
  autograd::add_grad_hook(h, [](const Tensor& grad) { return grad * 10.0; });
  autograd::add_grad_hook(h, watch);
  autograd::add_grad_hook(x, watch);
  (h * h).backward();
  EXPECT_EQ(seen, (std::vector<double>{12, 120, 240}));
  EXPECT_EQ(x.grad().item<double>(), 240);
}

// Rules write over gradients that nobody holds.
TEST(GradHookTest, WhatAHookKeepsStaysAsItWas) {
  const Tensor x = make({1, -2}, {2}, DType::f64).set_requires_grad();
  const Tensor y = relu(x);
  Tensor kept;
  autograd::add_grad_hook(y, [&](const Tensor& grad) {
    kept = grad;
    return Tensor();
  });
  (y * 3.0).sum().backward();
  EXPECT_TENSOR(kept, ({2}), ({3, 3}));
  EXPECT_TENSOR(x.grad(), ({2}), ({3, 0}));
}

TEST(GradHookTest, TheWholeGradientOfALeafAtOnce) {
  const Tensor x = leaf(3);
  int calls = 0;
  autograd::add_grad_hook(x, [&](const Tensor& grad) {
    ++calls;
    EXPECT_EQ(grad.item<double>(), 7);
    return grad * 2.0;
  });
  (x * x + x).backward();
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(x.grad().item<double>(), 14);
}

TEST(GradHookTest, AlsoInGrad) {
  const Tensor x = leaf(3);
  const Tensor h = x * 2.0;
  autograd::add_grad_hook(h, [](const Tensor& grad) { return grad * 10.0; });
  const Tensor y = h * 1.0;
  const Tensor inputs[] = {x, h};
  const auto g = autograd::grad({&y, 1}, inputs);
  EXPECT_EQ(g[0].item<double>(), 20);
  EXPECT_EQ(g[1].item<double>(), 10);
}

TEST(GradHookTest, OnePieceOfASplit) {
  const Tensor x = make({1, 2, 3, 4}, {4}, DType::f64).set_requires_grad();
  const auto parts = chunk(x, 2);
  autograd::add_grad_hook(parts[1], [](const Tensor& grad) { return grad * 10.0; });
  (parts[0] + parts[1]).sum().backward();
  EXPECT_TENSOR(x.grad(), {4}, {1, 1, 10, 10});
}

TEST(GradHookTest, RefusesAnotherShape) {
  const Tensor x = leaf(3);
  autograd::add_grad_hook(x, [](const Tensor&) { return make({1, 2}, {2}, DType::f64); });
  EXPECT_WEFT_ERROR((x * 2.0).backward(), Shape, "the hook returned f64 [2]");
  EXPECT_WEFT_ERROR(autograd::add_grad_hook(make({1}, {1}), [](const Tensor&) { return Tensor(); }),
                    InvalidArgument, "requires a gradient");
}

TEST(EndHookTest, WhenTheOutermostBackwardEnds) {
  const Tensor x = leaf(3), w = leaf(1);
  std::string order;
  autograd::add_leaf_hook(w, [&](const Tensor&) {
    order += "w";
    autograd::at_backward_end([&] { order += "1"; });
  });
  const Tensor y = x * 2.0;
  autograd::add_grad_hook(y, [&](const Tensor&) {
    autograd::at_backward_end([&] { order += "2"; });
    w.backward();
    order += "y";
    return Tensor();
  });
  autograd::add_leaf_hook(x, [&](const Tensor&) { order += "x"; });
  y.backward();
  EXPECT_EQ(order, "wyx21");
}

TEST(EndHookTest, AlsoWhenItFails) {
  const Tensor x = leaf(3);
  int calls = 0;
  auto hook = autograd::add_leaf_hook(x, [&](const Tensor&) {
    autograd::at_backward_end([&] { ++calls; });
    throw std::runtime_error("from the hook");
  });
  EXPECT_THROW(x.backward(), std::runtime_error);
  EXPECT_EQ(calls, 1);
  hook.remove();
  x.backward();  // and nothing of the failed one is left
  EXPECT_EQ(calls, 1);
}

TEST(EndHookTest, MayStartABackwardAndMayThrow) {
  const Tensor x = leaf(3), w = leaf(1);
  int calls = 0;
  autograd::add_leaf_hook(w,
                          [&](const Tensor&) { autograd::at_backward_end([&] { calls += 10; }); });
  autograd::add_leaf_hook(x, [&](const Tensor&) {
    autograd::at_backward_end([&] {
      ++calls;
      w.backward();
    });
    autograd::at_backward_end([] { throw std::runtime_error("at the end"); });
  });
  EXPECT_THROW(x.backward(), std::runtime_error);
  EXPECT_EQ(calls, 11);
  EXPECT_EQ(x.grad().item<double>(), 1);
}

TEST(EndHookTest, OnlyInsideABackward) {
  EXPECT_WEFT_ERROR(autograd::at_backward_end([] {}), InvalidArgument,
                    "no backward is in progress");
}

TEST(FailureTest, AFailedBackwardLeavesTheThreadAsItWas) {
  const Tensor x = leaf(3);
  auto hook = autograd::add_grad_hook(
      x, [](const Tensor&) -> Tensor { throw std::runtime_error("from the hook"); });
  EXPECT_THROW((x * 2.0).backward(), std::runtime_error);
  EXPECT_TRUE(thread_state().grad_enabled);
  EXPECT_EQ(thread_state().path, nullptr);
  EXPECT_FALSE(x.grad().defined());
  hook.remove();
  (x * 2.0).backward();
  EXPECT_EQ(x.grad().item<double>(), 2);
}

}  // namespace
}  // namespace weft
