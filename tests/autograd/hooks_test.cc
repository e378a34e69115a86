#include <gtest/gtest.h>

#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "weft/autograd/autocast.h"
#include "weft/autograd/autograd.h"
#include "weft/autograd/checkpoint.h"
#include "weft/autograd/function.h"
#include "weft/autograd/grad.h"
#include "weft/autograd/ops.h"
#include "weft/core/runtime/thread_state.h"
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
  autograd::grad({&y, 1}, {&x, 1}, {}, {.retain_graph = true});
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

// A hook may own objects that are destroyed with it and then remove their own hooks.
TEST(LeafHookTest, ARemovedOneMayRemoveOthers) {
  struct Owner {
    autograd::HookHandle other;
    ~Owner() { other.remove(); }
  };
  const Tensor x = leaf(3);
  int calls = 0;
  auto owner = std::make_shared<Owner>();
  owner->other = autograd::add_leaf_hook(x, [&](const Tensor&) { ++calls; });
  auto first = autograd::add_leaf_hook(x, [owner](const Tensor&) {});
  owner.reset();
  x.backward();
  first.remove();
  x.backward();
  EXPECT_EQ(calls, 1);
}

TEST(LeafHookTest, HandlesOutliveTensors) {
  autograd::HookHandle handle;
  {
    const Tensor x = leaf(3);
    handle = autograd::add_leaf_hook(x, [](const Tensor&) {});
  }
  handle.remove();
}

// Backward finishes leaves in reverse order of their use, so that communication can begin early.
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

// Rules overwrite gradients that have no other owner.
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

TEST(GradHookTest, KnowsWhetherItIsForGrad) {
  const Tensor x = leaf(3);
  std::vector<bool> for_grad;
  autograd::add_grad_hook(x, [&](const Tensor&) {
    for_grad.push_back(thread_state().for_grad);
    return Tensor();
  });
  autograd::grad(x * 2.0, x);
  (x * 2.0).backward();
  // A backward inside of a grad() adds to x.
  const Tensor y = leaf(1) * 1.0, inner = x * 2.0;
  autograd::add_grad_hook(y, [&](const Tensor&) {
    inner.backward();
    return Tensor();
  });
  autograd::grad(y * 2.0, y);
  EXPECT_EQ(for_grad, (std::vector<bool>{true, false, false}));
  EXPECT_FALSE(thread_state().for_grad);
}

TEST(GradHookTest, OnePieceOfASplit) {
  const Tensor x = make({1, 2, 3, 4}, {4}, DType::f64).set_requires_grad();
  const auto parts = chunk(x, 2);
  autograd::add_grad_hook(parts[1], [](const Tensor& grad) { return grad * 10.0; });
  (parts[0] + parts[1]).sum().backward();
  EXPECT_TENSOR(x.grad(), {4}, {1, 1, 10, 10});
}

TEST(GradHookTest, OfAViewWhoseBaseWasWrittenTo) {
  const Tensor x = make({1, 2, 3}, {3}, DType::f64).set_requires_grad();
  const Tensor y = x * 2.0;
  const Tensor view = y.slice(0, 0, 2);
  y.mul_(3);
  int calls = 0;
  autograd::add_grad_hook(view, [&](const Tensor& grad) {
    ++calls;
    EXPECT_TENSOR(grad, ({2}), {1, 1});
    return grad * 10.0;
  });
  view.sum().backward();
  EXPECT_EQ(calls, 1);
  EXPECT_TENSOR(x.grad(), ({3}), {60, 60, 0});
}

TEST(GradHookTest, RefusesAnExpandedViewWhoseBaseWasWrittenTo) {
  const Tensor y = make({1}, {1}, DType::f64).set_requires_grad() * 2.0;
  const Tensor view = y.expand({3});
  autograd::add_grad_hook(view, [](const Tensor&) { return Tensor(); });
  y.mul_(3);
  EXPECT_WEFT_ERROR(autograd::add_grad_hook(view, [](const Tensor&) { return Tensor(); }),
                    Unsupported, "taken before its base was changed in place");
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
    autograd::at_backward_end([&](const std::exception_ptr&) { order += "1"; });
  });
  const Tensor y = x * 2.0;
  autograd::add_grad_hook(y, [&](const Tensor&) {
    autograd::at_backward_end([&](const std::exception_ptr&) { order += "2"; });
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
    autograd::at_backward_end([&](const std::exception_ptr&) { ++calls; });
    throw std::runtime_error("from the hook");
  });
  EXPECT_THROW(x.backward(), std::runtime_error);
  EXPECT_EQ(calls, 1);
  hook.remove();
  x.backward();  // nothing of the failed backward is left
  EXPECT_EQ(calls, 1);
}

TEST(EndHookTest, IsToldWhetherTheBackwardFailed) {
  const Tensor x = leaf(3);
  std::string told;
  bool fail = false;
  autograd::add_leaf_hook(x, [&](const Tensor&) {
    for (int i = 0; i < 2; ++i) {
      autograd::at_backward_end([&](const std::exception_ptr& error) {
        try {
          if (error) std::rethrow_exception(error);
          told += "fine ";
        } catch (const std::runtime_error& e) {
          told += e.what();
        }
        throw std::logic_error("from a callback");  // not an error of the backward itself
      });
    }
    if (fail) throw std::runtime_error("failed ");
  });
  EXPECT_THROW(x.backward(), std::logic_error);
  EXPECT_EQ(told, "fine fine ");
  fail = true;
  EXPECT_THROW(x.backward(), std::runtime_error);
  EXPECT_EQ(told, "fine fine failed failed ");
}

TEST(EndHookTest, MayStartABackwardAndMayThrow) {
  const Tensor x = leaf(3), w = leaf(1);
  int calls = 0;
  autograd::add_leaf_hook(w, [&](const Tensor&) {
    autograd::at_backward_end([&](const std::exception_ptr&) { calls += 10; });
  });
  autograd::add_leaf_hook(x, [&](const Tensor&) {
    autograd::at_backward_end([&](const std::exception_ptr&) {
      ++calls;
      w.backward();
    });
    autograd::at_backward_end(
        [](const std::exception_ptr&) { throw std::runtime_error("at the end"); });
  });
  EXPECT_THROW(x.backward(), std::runtime_error);
  EXPECT_EQ(calls, 11);
  EXPECT_EQ(x.grad().item<double>(), 1);
}

TEST(EndHookTest, OnlyInsideABackward) {
  EXPECT_WEFT_ERROR(autograd::at_backward_end([](const std::exception_ptr&) {}), InvalidArgument,
                    "no backward is in progress");
}

// --- Final hooks ---------------------------------------------------------------------------------

// Appends to `order` what the final hook of a leaf sees.
void watch_final(const Tensor& x, const std::string& name, std::string& order) {
  autograd::add_final_leaf_hook(x, [&order, name](const Tensor& t) {
    order += name + std::to_string(static_cast<int>(t.grad().item<double>())) + " ";
  });
}

TEST(FinalHookTest, OnceForAWeightOfThreeCheckpoints) {
  const Tensor x = leaf(1), w = leaf(2);
  std::string order;
  autograd::add_leaf_hook(
      w, [&](const Tensor& t) { order += std::to_string(t.grad().item<double>())[0]; });
  watch_final(w, " w", order);
  const auto block = [&](const Tensor& in) { return in * w; };
  using autograd::checkpoint;
  for (int round = 0; round < 2; ++round) {
    checkpoint(block, checkpoint(block, checkpoint(block, x))).backward();
    EXPECT_EQ(order, "481 w12 ");  // 4, 8 and 12
    order.clear();
    autograd::zero_grad(w);
  }
}

// As early as possible: when the last checkpoint's own backward begins.
TEST(FinalHookTest, WaitsForTheCheckpointsStillToRun) {
  const Tensor x = leaf(1), w1 = leaf(1), w2 = leaf(1), w3 = leaf(1), head = leaf(1);
  std::string order;
  const auto block = [&](const char* name, const Tensor& w) {
    return [&order, name, w](const Tensor& in) {
      if (autograd::recomputing()) order += name;
      return in * w;
    };
  };
  watch_final(w1, "a", order);
  watch_final(w2, "b", order);
  watch_final(w3, "c", order);
  watch_final(head, "h", order);
  using autograd::checkpoint;
  const Tensor y =
      checkpoint(block("3 ", w3), checkpoint(block("2 ", w2), checkpoint(block("1 ", w1), x)));
  (y * head).backward();
  EXPECT_EQ(order, "3 2 1 h1 c1 b1 a1 ");
}

TEST(FinalHookTest, AtOnceWhereNoRuleStartsABackward) {
  const Tensor a = leaf(1), b = leaf(1);
  std::string order;
  watch_final(a, "a", order);
  watch_final(b, "b", order);
  autograd::add_leaf_hook(b, [&](const Tensor&) { order += "leaf "; });
  const Tensor h = a * 1.0;
  autograd::add_grad_hook(h, [&](const Tensor&) {
    order += "h ";
    return Tensor();
  });
  (h * b).backward();
  EXPECT_EQ(order, "leaf b1 h a1 ");
}

TEST(FinalHookTest, WaitsForTheBackwardAroundACheckpoint) {
  const Tensor x = leaf(1), w = leaf(1);
  std::string order;
  watch_final(w, "w", order);
  (autograd::checkpoint([&](const Tensor& in) { return in * w; }, x * w)).backward();
  EXPECT_EQ(order, "w2 ");
}

TEST(FinalHookTest, AlsoInCheckpointsWithinCheckpoints) {
  const Tensor x = leaf(1), w = leaf(1), v = leaf(1);
  std::string order;
  watch_final(w, "w", order);
  watch_final(v, "v", order);
  using autograd::checkpoint;
  const auto inner = [&](const Tensor& in) { return in * w; };
  const auto outer = [&](const Tensor& in) { return checkpoint(inner, checkpoint(inner, in)) * v; };
  checkpoint(outer, checkpoint(outer, x)).backward();
  EXPECT_EQ(order, "v2 w4 ");
}

struct Hidden {
  Tensor w;  // not an input of the function
};

template <bool nests>
struct Doubled : autograd::Function<Doubled<nests>> {
  static constexpr bool nests_backward = nests;
  static Tensor forward(autograd::Context& ctx, const Tensor& x, const Hidden& hidden) {
    ctx.data = hidden.w;
    return raw::mul(x, 2);
  }
  static std::vector<Tensor> backward(autograd::Context& ctx, std::span<const Tensor> grads) {
    if (nests) std::any_cast<const Tensor&>(ctx.data).backward();
    return {grads[0] * 2.0};
  }
};

TEST(FinalHookTest, FunctionsMaySayThatTheyStartNone) {
  const Tensor x = leaf(1), w = leaf(1);
  std::string order;
  watch_final(w, "w", order);
  const auto run = [&](auto f) {
    order.clear();
    autograd::zero_grad(w);
    const Tensor h = f(x);
    autograd::add_grad_hook(h, [&](const Tensor&) {
      order += "h ";
      return Tensor();
    });
    (h * w).backward();
  };
  run([&](const Tensor& a) { return Doubled<false>::apply(a, Hidden{w}); });
  EXPECT_EQ(order, "w2 h ");
  run([&](const Tensor& a) { return Doubled<true>::apply(a, Hidden{w}); });
  EXPECT_EQ(order, "h w3 ");
}

TEST(FinalHookTest, NotWhenTheBackwardFails) {
  const Tensor x = leaf(1), w = leaf(1);
  std::string order;
  watch_final(w, "w", order);
  bool fail = true;
  const auto block = [&](const Tensor& in) {
    if (fail && autograd::recomputing()) throw std::runtime_error("from the block");
    return in * 1.0;
  };
  EXPECT_THROW((autograd::checkpoint(block, x) * w).backward(), std::runtime_error);
  EXPECT_EQ(order, "");
  fail = false;
  autograd::zero_grad(w);
  (autograd::checkpoint(block, x) * w).backward();  // nothing of the failed backward is left
  EXPECT_EQ(order, "w1 ");
}

TEST(FinalHookTest, NotInGradAndNotForUnreached) {
  const Tensor x = leaf(1), other = leaf(1);
  std::string order;
  watch_final(x, "x", order);
  watch_final(other, "o", order);
  const Tensor y = x * 2.0;
  autograd::grad({&y, 1}, {&x, 1}, {}, {.retain_graph = true});
  EXPECT_EQ(order, "");
  y.backward();
  EXPECT_EQ(order, "x2 ");
}

// For hooks that run at the end and for those that run during the backward.
TEST(FinalHookTest, OutsideOfAutocastAndOfTheTape) {
  const Tensor x = leaf(1);
  int calls = 0;
  const auto watch = [&] {
    autograd::add_final_leaf_hook(x, [&](const Tensor&) {
      ++calls;
      EXPECT_FALSE(autograd::is_autocast_enabled(DeviceType::cpu));
      EXPECT_FALSE(thread_state().grad_enabled);
    });
  };
  const Tensor h = x * 2.0;
  autograd::add_grad_hook(h, [&](const Tensor&) {
    if (calls == 0) watch();
    return Tensor();
  });
  const autograd::Autocast autocast(DeviceType::cpu);
  h.backward({}, true);
  EXPECT_EQ(calls, 1);
  h.backward();
  EXPECT_EQ(calls, 2);
}

TEST(FinalHookTest, AddedMeanwhileComesAtTheEnd) {
  const Tensor x = leaf(1), w = leaf(1);
  std::string order;
  const Tensor h = x * 2.0;
  autograd::add_grad_hook(h, [&](const Tensor&) {
    watch_final(x, "x", order);
    return Tensor();
  });
  autograd::add_leaf_hook(x, [&](const Tensor&) {
    order += "leaf ";
    autograd::at_backward_end([&](const std::exception_ptr&) { order += "end "; });
  });
  (h * w).backward();
  EXPECT_EQ(order, "leaf x2 end ");
}

// A gradient that was reported as final cannot change any more.
TEST(FinalHookTest, RefusesABackwardOfAHookThatComesTooLate) {
  const Tensor x = leaf(1), w = leaf(1);
  std::string order;
  watch_final(w, "w", order);
  const Tensor h = x * 2.0;
  bool at_end = false;
  autograd::add_grad_hook(h, [&](const Tensor&) {
    if (at_end) {
      autograd::at_backward_end([&](const std::exception_ptr&) { w.backward(); });
    } else {
      w.backward();
    }
    return Tensor();
  });
  EXPECT_WEFT_ERROR((h * w).backward(), InvalidArgument, "after its final hooks ran");
  at_end = true;
  autograd::zero_grad(w);
  order.clear();
  (h * w).backward();
  EXPECT_EQ(order, "w2 w3 ");
}

TEST(FinalHookTest, OnlyForLeaves) {
  EXPECT_WEFT_ERROR(autograd::add_final_leaf_hook(leaf(3) * 2.0, [](const Tensor&) {}),
                    InvalidArgument, "[add_final_leaf_hook] needs a leaf");
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
