// Hooks on the calls of modules: their order, what they replace, copies and removal.
#include "weft/nn/forward_hooks.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "weft/autograd/ops.h"
#include "weft/autograd/tape.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/nn/activation.h"
#include "weft/nn/batch_norm.h"
#include "weft/nn/conv.h"
#include "weft/nn/follower.h"
#include "weft/nn/linear.h"
#include "weft/nn/module_list.h"
#include "weft/nn/sequential.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::values_of;
using Values = std::vector<double>;

struct Pair {
  Tensor a, b;
  int count = 0;
  auto tensors() { return std::tie(a, b); }
};

// Adds all tensors in its arguments.
struct Adder : nn::Module<Adder> {
  Tensor forward(const Tensor& x, const std::vector<Tensor>& more, const Pair& pair, double by) {
    Tensor sum = x * by;
    for (const Tensor& y : more) sum = sum + y;
    return sum + pair.a + pair.b * static_cast<double>(pair.count);
  }
};

struct Swap : nn::Module<Swap> {
  Pair forward(Tensor a, Tensor b) { return {b, a, 7}; }
};

struct Outer : nn::Module<Outer> {
  nn::Identity inner = child("inner", nn::Identity());
  Tensor forward(const Tensor& x) { return inner(x * 2.0) + 1.0; }
};

// A hook's result would be lost. Callables with other parameters or results do not compile.
template <class F>
concept PreHook = nn::detail::VoidHook<F, std::span<Tensor>>;
template <class F>
concept Hook = nn::detail::VoidHook<F, std::span<const Tensor>, std::span<Tensor>>;
const auto assigns_a_result = [](auto&, auto, auto out) { out[0] = out[0] * 2.0; };
const auto assigns_an_argument = [](auto&, auto args) { args[0] = args[0] * 2.0; };
static_assert(!Hook<decltype([](auto&, auto, auto out) { return out[0] * 2.0; })>);
static_assert(!PreHook<decltype([](nn::ModuleBase&, std::span<Tensor> args) { return args[0]; })>);
static_assert(!PreHook<std::function<Tensor(nn::ModuleBase&, std::span<Tensor>)>>);
static_assert(!PreHook<decltype(assigns_a_result)>);
static_assert(Hook<decltype(assigns_a_result)>);
static_assert(PreHook<decltype(assigns_an_argument)>);
static_assert(Hook<nn::ForwardHook>);
static_assert(PreHook<nn::ForwardPreHook>);

TEST(ForwardHooks, MayBeGeneric) {
  nn::Identity net;
  net.register_forward_pre_hook(assigns_an_argument);
  net.register_forward_hook(assigns_a_result);
  net.register_forward_hook(assigns_an_argument);  // assigns to the first result here
  EXPECT_EQ(values_of(net(ones({1}))), (Values{8}));
}

TEST(ForwardHooks, RunInPyTorchsOrder) {
  Outer net;
  std::string calls;
  const auto before = [&](const char* name) {
    return [&calls, name](nn::ModuleBase& m, std::span<Tensor> args) {
      EXPECT_EQ(args.size(), 1u);
      calls += std::string("<") + name + " " + m.type_name() + module_path() + "> ";
    };
  };
  const auto after = [&](const char* name) {
    return
        [&calls, name](nn::ModuleBase& m, std::span<const Tensor> args, std::span<Tensor> results) {
          EXPECT_EQ(args.size(), 1u);
          EXPECT_EQ(results.size(), 1u);
          calls += std::string("(") + name + " " + m.type_name() + module_path() + ") ";
        };
  };
  EXPECT_FALSE(net.has_forward_hooks());
  nn::HookHandle b = net.register_forward_pre_hook(before("b"));
  net.register_forward_pre_hook(before("c"));
  net.register_forward_pre_hook(before("a"), true);
  net.inner.register_forward_hook(after("y"));
  net.inner.register_forward_hook(after("x"), true);
  net.register_forward_hook(after("z"));
  EXPECT_EQ(values_of(net(ones({1}))), (Values{3}));
  EXPECT_EQ(calls, "<a Outer> <b Outer> <c Outer> (x Identityinner) (y Identityinner) (z Outer) ");
  b.remove();
  b.remove();
  calls.clear();
  net(ones({1}));
  EXPECT_EQ(calls, "<a Outer> <c Outer> (x Identityinner) (y Identityinner) (z Outer) ");
  EXPECT_TRUE(net.has_forward_hooks());
}

// No matter what throws: a hook before the forward, the forward, a hook after it, or an error hook.
TEST(ForwardHooks, RunAfterAThrow) {
  struct Throws : nn::Module<Throws> {
    Tensor forward(const Tensor& x) {
      if (x.numel() == 2) throw std::runtime_error("forward");
      return x;
    }
  } net;
  std::vector<std::string> calls;
  net.register_forward_error_hook([&](nn::ModuleBase& m) {
    calls.push_back(m.type_name() + " at " + module_path());
    throw std::runtime_error("lost");
  });
  nn::HookHandle second =
      net.register_forward_error_hook([&](nn::ModuleBase&) { calls.emplace_back("second"); });
  net.register_forward_pre_hook([](nn::ModuleBase&, std::span<Tensor> args) {
    if (args[0].numel() == 1) throw std::runtime_error("before");
  });
  net.register_forward_hook([](nn::ModuleBase&, std::span<Tensor> results) {
    if (results[0].numel() == 3) throw std::runtime_error("after");
  });
  nn::Sequential outer{net};
  const char* const names[] = {"before", "forward", "after"};
  for (int n = 1; n <= 3; ++n) {
    try {
      outer(ones({n}));
      ADD_FAILURE();
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), names[n - 1]);
    }
    EXPECT_EQ(calls, (std::vector<std::string>{"Throws at 0", "second"}));
    calls.clear();
  }
  net(ones({4}));
  EXPECT_TRUE(calls.empty());
  second.remove();
  EXPECT_THROW(net(ones({1})), std::runtime_error);
  EXPECT_EQ(calls.size(), 1u);
  EXPECT_WEFT_ERROR(net.register_forward_error_hook({}), InvalidArgument, "the function is empty");
}

TEST(ForwardHooks, ReplaceArgumentsWhereverTheyAre) {
  Adder adder;
  const Tensor x = ones({1});
  const std::vector<Tensor> more{x * 10.0, x * 20.0};
  const Pair pair{x * 100.0, x * 1000.0, 3};
  EXPECT_EQ(values_of(adder(x, more, pair, 2.0)), (Values{2 + 30 + 100 + 3000}));
  adder.register_forward_pre_hook([](nn::ModuleBase&, std::span<Tensor> args) {
    ASSERT_EQ(args.size(), 5u);
    for (std::size_t i = 0; i < args.size(); ++i)
      args[i] = args[i] + static_cast<double>(i + 1) / 16;
  });
  const double want = 2 * (1 + 1. / 16) + 30 + 5. / 16 + 100 + 4. / 16 + 3 * (1000 + 5. / 16);
  EXPECT_EQ(values_of(adder(x, more, pair, 2.0)), (Values{want}));
  EXPECT_EQ(values_of(adder(Tensor(x), std::vector(more), Pair(pair), 2)), (Values{want}));
  EXPECT_EQ(values_of(more[0]), (Values{10})) << "the caller's own stay";
  EXPECT_EQ(values_of(pair.a), (Values{100}));
}

TEST(ForwardHooks, ReplaceResultsOneAfterTheOther) {
  Swap swap;
  const Tensor a = ones({1}), b = a * 2.0;
  swap.register_forward_hook(
      [](nn::ModuleBase&, std::span<const Tensor> args, std::span<Tensor> results) {
        results[0] = results[0] * 10.0 + args[0];
      });
  swap.register_forward_hook([](nn::ModuleBase&, std::span<Tensor> results) {
    results[1] = results[0] + results[1] / 2.0;
  });
  const Pair got = swap(a, b);
  EXPECT_EQ(values_of(got.a), (Values{21}));
  EXPECT_EQ(values_of(got.b), (Values{21.5}));
  EXPECT_EQ(got.count, 7);
  EXPECT_TRUE(Swap()(a, b).a.same(b));
}

TEST(ForwardHooks, GradientsFlowThroughThem) {
  nn::Linear fc(2, 2, false);
  fc.register_forward_pre_hook(
      [](nn::ModuleBase&, std::span<Tensor> args) { args[0] = args[0] * 3.0; });
  fc.register_forward_hook(
      [](nn::ModuleBase&, std::span<Tensor> results) { results[0] = results[0] * 5.0; });
  const Tensor x = ones({1, 2}).set_requires_grad();
  fc(x).sum().backward();
  EXPECT_EQ(values_of(fc.weight.grad()), (Values{15, 15, 15, 15}));
  const Values column_sums = values_of(raw::mul_(raw::sum(fc.weight, {0}), 15));
  // f32: products with 5, with a weight and with 3, and a sum of two, rounded one after the other.
  EXPECT_TRUE(testing::near_values(x.grad(), column_sums, 1e-5));
}

TEST(ForwardHooks, MayChangeTheModuleItself) {
  nn::Linear fc(1, 1, false);
  raw::fill_(fc.weight, 2);
  // Writes a weight before forward, as FSDP does when it gathers.
  fc.register_forward_pre_hook([](nn::ModuleBase& m, std::span<Tensor>) {
    EXPECT_FALSE(m.is_training());
    raw::mul_(m.parameters()[0], 10);
  });
  fc.register_forward_hook(
      [](nn::ModuleBase& m, std::span<Tensor>) { raw::fill_(m.parameters()[0], 0); });
  fc.eval();
  const NoGrad no_grad;
  EXPECT_EQ(values_of(fc(ones({1, 1}))), (Values{20}));
  EXPECT_EQ(values_of(fc.weight), (Values{0}));
}

TEST(ForwardHooks, MayComeAndGoDuringACall) {
  nn::Identity net;
  int first = 0, second = 0;
  nn::HookHandle handle = net.register_forward_hook([&](nn::ModuleBase& m, std::span<Tensor>) {
    ++first;
    handle.remove();
    m.register_forward_hook([&](nn::ModuleBase&, std::span<Tensor>) { ++second; });
  });
  net(ones({1}));
  EXPECT_EQ(std::pair(first, second), std::pair(1, 0));
  net(ones({1}));
  EXPECT_EQ(std::pair(first, second), std::pair(1, 1));
  {
    nn::Identity gone;
    handle = gone.register_forward_hook([](nn::ModuleBase&, std::span<Tensor>) {});
  }
  handle.remove();
}

TEST(ForwardHooks, ClonesHaveThemToo) {
  Outer net;
  std::vector<double> seen;
  nn::HookHandle handle =
      net.inner.register_forward_hook([&](nn::ModuleBase&, std::span<Tensor> results) {
        seen.push_back(results[0].item<double>());
      });
  Outer copy = nn::clone(net);
  copy(ones({1}) * 5.0);
  EXPECT_EQ(seen, (Values{10}));
  handle.remove();
  net(ones({1}));
  copy(ones({1}));
  EXPECT_EQ(seen, (Values{10, 2}));
  EXPECT_FALSE(net.inner.has_forward_hooks());
}

TEST(ForwardHooks, FollowersTakeThemOver) {
  nn::Linear fc(1, 1, false);
  raw::fill_(fc.weight, 2);
  nn::Linear replica = nn::clone(fc);
  nn::Follower follower(fc, replica);
  nn::HookHandle handle = fc.register_forward_hook(
      [](nn::ModuleBase&, std::span<Tensor> results) { results[0] = results[0] + 1.0; });
  EXPECT_EQ(values_of(replica(ones({1, 1}))), (Values{2}));
  follower.follow();
  EXPECT_EQ(values_of(replica(ones({1, 1}))), (Values{3}));
  handle.remove();
  follower.follow();
  EXPECT_EQ(values_of(replica(ones({1, 1}))), (Values{2}));
}

TEST(ForwardHooks, SeeModulesThatWouldRunAsOne) {
  const Tensor x = testing::some({3, 2, 4, 4});
  const std::pair<std::string, nn::AnyModule> layers[] = {
      {"batch_norm", nn::BatchNorm2d(2)},
      {"conv2d", nn::Conv2d(2, 3, 3)},
      {"conv_transpose2d", nn::ConvTranspose2d(2, 3, 3)},
      {"linear", nn::Linear(4, 5)}};
  for (const auto& [name, layer] : layers) {
    SCOPED_TRACE(name);
    for (const std::size_t hooked : {0u, 1u}) {
      nn::Sequential net{layer, nn::ReLU()};
      const Tensor plain = net(x);
      EXPECT_EQ(autograd::tape(plain)[0].op, name == "batch_norm" ? name : name + "_relu");
      Tensor seen;
      nn::HookHandle hook = net[hooked].register_forward_hook(
          [&](nn::ModuleBase&, std::span<Tensor> results) { seen = results[0].clone(); });
      const Tensor y = net(x);
      EXPECT_EQ(autograd::tape(y)[0].op, "relu");
      EXPECT_EQ(values_of(y), values_of(plain));
      ASSERT_TRUE(seen.defined());
      EXPECT_EQ(values_of(relu(seen)), values_of(y));
      EXPECT_EQ(values_of(seen.min({})) < Values{0}, hooked == 0);
      hook.remove();
    }
  }
}

TEST(ForwardHooks, LeaveMemoryToTheForwardUnlessTheyWantTheArguments) {
  nn::ReLU net;
  const auto in_place = [&] {
    Tensor x = ones({1});
    const void* memory = x.raw_data();
    return net(std::move(x)).raw_data() == memory;
  };
  net.register_forward_pre_hook([](nn::ModuleBase&, std::span<Tensor>) {});
  net.register_forward_hook([](nn::ModuleBase&, std::span<Tensor>) {});
  EXPECT_TRUE(in_place());
  net.register_forward_hook([](nn::ModuleBase&, std::span<const Tensor>, std::span<Tensor>) {});
  EXPECT_FALSE(in_place());
}

struct Kept : nn::Module<Kept> {
  Tensor value = ones({1});
  const Tensor& forward(const Tensor&) { return value; }
};
struct OfSpan : nn::Module<OfSpan> {
  Tensor forward(std::span<const Tensor> x) { return x[0]; }
};
struct Throwing : nn::Module<Throwing> {
  void forward(const Tensor&) { throw std::runtime_error("no"); }
};
struct Counting : nn::Module<Counting> {
  int forward(int n, Tensor& last) { return last = ones({1}), n + 1; }
};

TEST(ForwardHooks, SayWhereATensorHasNoPlace) {
  const auto replace = [](nn::ModuleBase&, std::span<Tensor> tensors) { tensors[0] = ones({1}); };
  Kept kept;
  const Tensor x = ones({1});
  nn::HookHandle handle = kept.register_forward_hook(replace);
  EXPECT_WEFT_ERROR(kept(x), InvalidArgument,
                    "[Kept] a hook has replaced a tensor of the result, which is a reference");
  handle.remove();
  kept.register_forward_pre_hook(replace);
  EXPECT_WEFT_ERROR(kept(x), InvalidArgument, "[Kept] a hook has replaced a tensor of the result");
  OfSpan of_span;
  const std::array<Tensor, 1> list{x};
  handle = of_span.register_forward_hook([](nn::ModuleBase&, std::span<Tensor>) {});
  EXPECT_TRUE(of_span(std::span(list)).same(x));
  of_span.register_forward_pre_hook(replace);
  EXPECT_WEFT_ERROR(of_span(std::span(list)), InvalidArgument, "a tensor of an argument");
  EXPECT_WEFT_ERROR(kept.register_forward_hook(nn::ResultHook()), InvalidArgument,
                    "[register_forward_hook] the function is empty");
  EXPECT_WEFT_ERROR(kept.register_forward_hook({}), InvalidArgument, "is empty");
  EXPECT_WEFT_ERROR(kept.register_forward_pre_hook({}), InvalidArgument, "is empty");
}

TEST(ForwardHooks, OfOtherCalls) {
  Throwing throwing;
  int calls = 0;
  const auto count = [&](nn::ModuleBase&, std::span<Tensor>) { ++calls; };
  throwing.register_forward_pre_hook(count);
  throwing.register_forward_hook(count);
  EXPECT_THROW(throwing(ones({1})), std::runtime_error);
  EXPECT_EQ(calls, 1);

  Counting counting;
  counting.register_forward_hook([&](nn::ModuleBase&, std::span<Tensor> results) {
    EXPECT_TRUE(results.empty());
    ++calls;
  });
  Tensor last;
  EXPECT_EQ(counting(1, last), 2);
  EXPECT_TRUE(last.defined()) << "the caller's own";
  EXPECT_EQ(calls, 2);

  Outer net;
  net.inner.register_forward_hook(
      [](nn::ModuleBase&, std::span<Tensor> results) { results[0] = results[0] + ones({2, 3}); });
  EXPECT_WEFT_ERROR(net(ones({5})), Shape, " in inner at ");
}

}  // namespace
}  // namespace weft
