// Operations with a user's own rule.
#include "weft/autograd/function.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include "weft/autograd/autograd.h"
#include "weft/autograd/grad.h"
#include "weft/autograd/gradcheck.h"
#include "weft/autograd/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using autograd::Context;
using autograd::Function;
using testing::make;
using testing::some;
using Grads = std::span<const Tensor>;

Tensor leaf(const std::vector<double>& values, const Shape& shape) {
  return make(values, shape, DType::f64).set_requires_grad();
}

struct MyExp : Function<MyExp> {
  static Tensor forward(Context& ctx, const Tensor& x) {
    EXPECT_FALSE(thread_state().grad_enabled);
    Tensor y = exp(x);
    ctx.save_for_backward({y});
    return y;
  }
  static std::vector<Tensor> backward(Context& ctx, Grads grads) {
    EXPECT_FALSE(thread_state().grad_enabled);
    return {grads[0] * ctx.saved(0)};
  }
};

TEST(FunctionTest, Gradcheck) {
  for (const Shape& shape : {Shape{2, 3}, Shape{}, Shape{0}}) {
    autograd::gradcheck("MyExp", [](Grads x) { return MyExp::apply(x[0]); },
                        {some(shape, DType::f64).set_requires_grad()});
  }
}

TEST(FunctionTest, ItsOwnOutputSavedIsNoCycle) {
  intrusive_ptr<Storage> storage;
  {
    const Tensor y = MyExp::apply(leaf({1}, {1}));
    storage = y.storage();
  }
  EXPECT_EQ(storage->use_count(), 1u);
}

TEST(FunctionTest, OffTheTape) {
  EXPECT_FALSE(MyExp::apply(make({1}, {1})).requires_grad());
  const NoGrad no_grad;
  EXPECT_FALSE(MyExp::apply(leaf({1}, {1})).requires_grad());
}

TEST(FunctionTest, SavedTensorsAreFreedAndWatched) {
  const Tensor x = leaf({1}, {1});
  const Tensor y = MyExp::apply(x);
  y.backward();
  EXPECT_WEFT_ERROR(y.backward(), InvalidArgument, "[MyExp] an earlier backward freed");
  const Tensor z = MyExp::apply(x);
  raw::mul_(z, 2);
  EXPECT_WEFT_ERROR(z.backward(), InvalidArgument, "[MyExp] a tensor saved");
}

// Has two outputs, a number, a list of inputs, and state of its own.
struct ScaledSums : Function<ScaledSums> {
  static std::vector<Tensor> forward(Context& ctx, const std::vector<Tensor>& parts, double scale,
                                     const Tensor& offset) {
    ctx.data = scale;
    ctx.save_for_backward({offset, Tensor()});
    Tensor total = raw::clone(offset);
    for (const Tensor& part : parts) raw::add_scaled_(total, scale, part);
    return {total, raw::mul(offset, 10)};
  }
  static std::vector<Tensor> backward(Context& ctx, Grads grads) {
    EXPECT_EQ(ctx.saved_count(), 2);
    EXPECT_FALSE(ctx.saved(1).defined());
    const double scale = std::any_cast<double>(ctx.data);
    const Tensor each = grads[0] * scale;
    return {ctx.needs_input_grad(0) ? each : Tensor(), ctx.needs_input_grad(1) ? each : Tensor(),
            grads[0] + grads[1] * 10.0};
  }
};

TEST(FunctionTest, SeveralInputsAndOutputs) {
  const std::vector<Tensor> parts = {leaf({1, 2}, {2}), make({3, 4}, {2}, DType::f64)};
  const Tensor offset = leaf({5, 6}, {2});
  const auto y = ScaledSums::apply(parts, 3.0, offset);
  EXPECT_TENSOR(y[0], {2}, {17, 24});
  (y[0] * 2.0 + y[1]).sum().backward();
  EXPECT_TENSOR(parts[0].grad(), {2}, {6, 6});
  EXPECT_FALSE(parts[1].grad().defined());
  EXPECT_TENSOR(offset.grad(), {2}, {12, 12});
}

TEST(FunctionTest, AnUnusedOutputCountsAsZero) {
  const std::vector<Tensor> parts = {leaf({1, 2}, {2}), leaf({3, 4}, {2})};
  const Tensor offset = leaf({5, 6}, {2});
  ScaledSums::apply(parts, 3.0, offset)[1].sum().backward();
  EXPECT_TENSOR(offset.grad(), {2}, {10, 10});
  EXPECT_TENSOR(parts[0].grad(), {2}, {0, 0});
}

// Inputs and results in structures: gradients are in the walker's order.
struct Scales : Function<Scales> {
  struct Result {
    Tensor product;
    std::optional<Tensor> doubled;
    int count;
    auto tensors() { return std::tie(product, doubled); }
  };
  static Result forward(Context& ctx, const std::map<std::string, Tensor>& scales,
                        const std::pair<Tensor, std::vector<Tensor>>& x) {
    ctx.save_for_backward({scales.at("a"), x.first});
    return {raw::mul(scales.at("a"), x.first), raw::mul(x.second[0], 2), 2};
  }
  static std::vector<Tensor> backward(Context& ctx, Grads grads) {
    return {grads[0] * ctx.saved(1), Tensor(), grads[0] * ctx.saved(0), grads[1] * 2.0};
  }
};

TEST(FunctionTest, StructuresInAndOut) {
  const Tensor a = leaf({2, 3}, {2}), unused = leaf({1}, {1});
  const Tensor x = leaf({5, 7}, {2}), z = leaf({1, 2}, {2});
  const Scales::Result y = Scales::apply(std::map<std::string, Tensor>{{"b", unused}, {"a", a}},
                                         std::pair<Tensor, std::vector<Tensor>>{x, {z}});
  EXPECT_EQ(y.count, 2);
  EXPECT_TENSOR(y.product, {2}, {10, 21});
  (y.product + *y.doubled * 10.0).sum().backward();
  EXPECT_TENSOR(a.grad(), {2}, {5, 7});
  EXPECT_TENSOR(x.grad(), {2}, {2, 3});
  EXPECT_TENSOR(z.grad(), {2}, {20, 20});
  EXPECT_FALSE(unused.grad().defined());
}

struct Identity : Function<Identity> {
  static Tensor forward(Context&, const Tensor& x) { return x; }
  static std::vector<Tensor> backward(Context&, Grads grads) { return {grads[0] * 2.0}; }
};

TEST(FunctionTest, MayReturnItsInput) {
  const Tensor x = leaf({1}, {1});
  const Tensor y = Identity::apply(x);
  EXPECT_FALSE(y.same(x));
  EXPECT_TRUE(x.is_leaf());
  EXPECT_EQ(y.raw_data(), x.raw_data());
  y.backward();
  EXPECT_TENSOR(x.grad(), {1}, {2});
  EXPECT_WEFT_ERROR(y.mul_(2), InvalidArgument, "view of a leaf");
}

struct Broken : Function<Broken> {
  static Tensor forward(Context& ctx, const Tensor& x, int how) {
    ctx.data = how;
    return raw::mul(x, 1);
  }
  static std::vector<Tensor> backward(Context& ctx, Grads grads) {
    switch (std::any_cast<int>(ctx.data)) {
      case 0: return {};
      case 1: return {zeros({7}, DType::f64)};
      case 2: return {raw::to(grads[0], DType::f32)};
      case 3: return {Tensor()};
      default: ctx.saved(0); return {};
    }
  }
};

TEST(FunctionTest, WrongResultsAreNamed) {
  const Tensor x = leaf({1, 2}, {2});
  const auto run = [&](int how) { Broken::apply(x, how).sum().backward(); };
  EXPECT_WEFT_ERROR(run(0), InvalidArgument, "[Broken] backward returned 0 gradients for 1 tensor");
  EXPECT_WEFT_ERROR(run(1), Shape, "backward's gradient 0: got [7], the input is [2]");
  EXPECT_WEFT_ERROR(run(2), Dtype, "got f32, the input is f64");
  EXPECT_WEFT_ERROR(run(4), InvalidArgument, "saved(0): 0 tensors were saved");
  run(3);  // undefined: zero
  EXPECT_FALSE(x.grad().defined());
}

// Recomputation: a backward inside the rule, on a tape that the rule has made.
struct Checkpoint : Function<Checkpoint> {
  static Tensor body(const Tensor& x, const Tensor& w) { return tanh(x * w) * w; }
  static Tensor forward(Context& ctx, const Tensor& x, const Tensor& w) {
    ctx.save_for_backward({x, w});
    return body(x, w);
  }
  static std::vector<Tensor> backward(Context& ctx, Grads grads) {
    const EnableGrad enable;
    std::vector<Tensor> inputs = {ctx.saved(0).detach().set_requires_grad(),
                                  ctx.saved(1).detach().set_requires_grad()};
    const Tensor y = body(inputs[0], inputs[1]);
    return autograd::grad({&y, 1}, inputs, grads);
  }
};

TEST(FunctionTest, RecomputationInsideTheRule) {
  autograd::gradcheck(
      "Checkpoint", [](Grads x) { return Checkpoint::apply(Checkpoint::apply(x[0], x[1]), x[1]); },
      {some({2, 2}, DType::f64).set_requires_grad(), some({2}, DType::f64).set_requires_grad()});
}

TEST(FunctionTest, ErrorsOfARuleNameTheModule) {
  const Tensor x = leaf({1, 2}, {2});
  Tensor y;
  {
    const PathScope scope("block");
    y = Broken::apply(x, 0);
  }
  EXPECT_WEFT_ERROR(y.sum().backward(), InvalidArgument, "in block");
}

}  // namespace
}  // namespace weft
