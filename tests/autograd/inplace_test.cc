// In-place methods, views of recorded tensors, and relu that overwrites its operand.
#include <cmath>

#include <gtest/gtest.h>

#include "weft/autograd/autograd.h"
#include "weft/autograd/gradcheck.h"
#include "weft/autograd/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using autograd::gradcheck;
using testing::make;
using testing::some;

Tensor leaf(const std::vector<double>& values, const Shape& shape) {
  return make(values, shape, DType::f64).set_requires_grad();
}

// f writes to a clone of x[0].
template <class F>
void check(const char* name, F f, const Shape& a, const Shape& b) {
  const auto apply = [&f](std::span<const Tensor> x) {
    const Tensor y = x[0].clone();
    f(y, x[1]);
    return y * y;
  };
  gradcheck(name, std::function<Tensor(std::span<const Tensor>)>(apply),
            {some(a, DType::f64, 0.5, 3, 1).set_requires_grad(),
             some(b, DType::f64, 0.5, 3, 2).set_requires_grad()});
}

TEST(InPlaceTest, Rules) {
  for (const auto& [a, b] : std::vector<std::pair<Shape, Shape>>{
           {{2, 3}, {2, 3}}, {{2, 3}, {3}}, {{2, 3}, {}}, {{}, {}}, {{1}, {1}}, {{0, 2}, {2}}}) {
    check("add_", [](const Tensor& y, const Tensor& b) { y.add_(b); }, a, b);
    check("add_", [](const Tensor& y, const Tensor& b) { y.add_(b, -2.5); }, a, b);
    check("sub_", [](const Tensor& y, const Tensor& b) { y.sub_(b); }, a, b);
    check("mul_", [](const Tensor& y, const Tensor& b) { y.mul_(b); }, a, b);
    check("div_", [](const Tensor& y, const Tensor& b) { y.div_(b); }, a, b);
    check("copy_", [](const Tensor& y, const Tensor& b) { y.copy_(b); }, a, b);
    check(
        "operators",
        [](const Tensor& y, const Tensor& b) {
          y += b;
          y *= b;
          y -= b;
          y /= b;
        },
        a, b);
    check("mul_", [](const Tensor& y, const Tensor& b) { y.mul_(-2).add_(b); }, a, b);
    check("fill_", [](const Tensor& y, const Tensor& b) { y.fill_(2).add_(b); }, a, b);
    check("zero_", [](const Tensor& y, const Tensor& b) { y.zero_().add_(b); }, a, b);
  }
  for (const Shape& shape : {Shape{2, 3}, Shape{}, Shape{0, 2}}) {
#define X(name) check(#name "_", [](const Tensor& y, const Tensor&) { y.name##_(); }, shape, {});
    WEFT_IN_PLACE_METHODS(X)
#undef X
    const auto alone = [&](const char* name, auto f) {
      check(name, [f](const Tensor& y, const Tensor& b) { f(y.mul_(b)); }, shape, {});
    };
    alone("numbers", [](const Tensor& y) { y.add_(1).sub_(3).mul_(2).div_(-3); });
    alone("number operators", [](const Tensor& y) { y += 1.0, y -= 3, y *= 2, y /= -3.0; });
    alone("clamp_", [](const Tensor& y) { y.clamp_(1, 2); });
    alone("clamp_min_", [](const Tensor& y) { y.clamp_min_(2); });
    alone("clamp_max_", [](const Tensor& y) { y.clamp_max_(2); });
    check("sub_", [](const Tensor& y, const Tensor& b) { y.sub_(b, 2.5); }, shape, {});
    check("clamp_", [](const Tensor& y, const Tensor& b) { y.clamp_(b - 1, b); }, shape, {});
    check("clamp_min_", [](const Tensor& y, const Tensor& b) { y.clamp_min_(b); }, shape, {});
    check("clamp_max_", [](const Tensor& y, const Tensor& b) { y.clamp_max_(b); }, shape, {});
    check("addcmul_", [](const Tensor& y, const Tensor& b) { y.addcmul_(b, b, 0.5); }, shape, {});
    check("addcdiv_", [](const Tensor& y, const Tensor& b) { y.addcdiv_(exp(b), b, -2); }, shape,
          {});
  }
  const Tensor chosen = make({1, 0, 1}, {3}, DType::boolean);
  check("masked_fill_",
        [&](const Tensor& y, const Tensor& b) { y.masked_fill_(chosen, 2).mul_(b); }, {2, 3}, {3});
  check("masked_fill_",
        [&](const Tensor& y, const Tensor& b) { y.mul_(2).masked_fill_(chosen, b); }, {2, 3}, {});
  const Tensor at = from_vector<std::int64_t>({2, 0}, {2});
  check("scatter_", [&](const Tensor& y, const Tensor& b) { y.mul_(2).scatter_(0, at, b); }, {3},
        {2});
  check("scatter_", [&](const Tensor& y, const Tensor& b) { y.scatter_(0, at, 3).add_(b); }, {3},
        {3});
  check("with itself", [](const Tensor& y, const Tensor&) { y.mul_(y).add_(y); }, {2}, {2});
  check("divided by itself", [](const Tensor& y, const Tensor&) { y.div_(y).add_(y); }, {2}, {2});
}

TEST(InPlaceTest, TheHandleGetsANewHistory) {
  const Tensor x = leaf({1, 2}, {2}), w = leaf({3, 4}, {2});
  const Tensor y = x * 2.0;
  const Tensor& returned = y.mul_(w);
  EXPECT_TRUE(returned.same(y));
  EXPECT_TENSOR(y, {2}, {6, 16});
  y.sum().backward();
  EXPECT_TENSOR(x.grad(), {2}, {6, 8});
  EXPECT_TENSOR(w.grad(), {2}, {2, 4});
}

TEST(InPlaceTest, APlainTensorJoinsTheTape) {
  const Tensor w = leaf({3, 4}, {2});
  const Tensor sum = zeros({2}, DType::f64);
  for (int i = 1; i <= 3; ++i) sum.add_(w, i);
  EXPECT_TRUE(sum.requires_grad());
  sum.sum().backward();
  EXPECT_TENSOR(w.grad(), {2}, {6, 6});
}

TEST(InPlaceTest, PlainTensorsStayPlain) {
  const Tensor a = make({1, 2}, {2}), b = make({3, 4}, {2});
  a.add_(b).mul_(2).sub_(b).div_(b).copy_(b).fill_(1).zero_();
  EXPECT_FALSE(a.requires_grad());
  EXPECT_EQ(a.impl()->autograd.get(), nullptr);
}

TEST(InPlaceTest, MixedDtypes) {
  const Tensor w = some({2}, DType::f32).set_requires_grad();
  const Tensor y = zeros({2}, DType::f64);
  y.add_(w).mul_(w);
  y.sum().backward();
  EXPECT_EQ(w.grad().dtype(), DType::f32);
  const Tensor counts = zeros({2}, DType::i64);
  counts.copy_(w);  // no gradient through integers
  EXPECT_FALSE(counts.requires_grad());
}

TEST(InPlaceTest, RefusesALeafThatRequiresAGradient) {
  const Tensor w = leaf({3, 4}, {2});
  EXPECT_WEFT_ERROR(w.add_(w), InvalidArgument,
                    "[add_] writes into a leaf that requires a gradient");
  EXPECT_WEFT_ERROR(w.mul_(2), InvalidArgument, "do it under NoGrad");
  EXPECT_WEFT_ERROR(w.zero_(), InvalidArgument, "[zero_]");
  EXPECT_TENSOR(w, {2}, {3, 4});
  const NoGrad no_grad;
  w.mul_(2);
  EXPECT_TENSOR(w, {2}, {6, 8});
  EXPECT_TRUE(w.is_leaf());
}

TEST(InPlaceTest, RefusesATensorWhoseElementsShareMemory) {
  const Tensor line = make({1, 2, 3}, {3}), other = ones({2, 2});
  const Tensor y = as_strided(line.storage(), DType::f32, {2, 2}, {1, 1});
  const char* text = "several elements share memory ([2,2], strides [1,1])";
  EXPECT_WEFT_ERROR(y.add_(other), InvalidArgument, text);
  EXPECT_WEFT_ERROR(y.sub_(other), InvalidArgument, text);
  EXPECT_WEFT_ERROR(y.mul_(other), InvalidArgument, text);
  EXPECT_WEFT_ERROR(y.div_(other), InvalidArgument, text);
  EXPECT_WEFT_ERROR(y.mul_(2), InvalidArgument, text);
  EXPECT_WEFT_ERROR(y.copy_(other), InvalidArgument, text);
  EXPECT_WEFT_ERROR(y.fill_(4), InvalidArgument, text);
  EXPECT_WEFT_ERROR(y.zero_(), InvalidArgument, text);
  EXPECT_TENSOR(line, {3}, {1, 2, 3});
}

TEST(InPlaceTest, AFailedWriteChangesNothing) {
  const Tensor x = leaf({1, 2}, {2});
  const Tensor y = x * 2.0;
  EXPECT_THROW(y.add_(make({1, 2, 3}, {3}, DType::f64)), Error);
  EXPECT_THROW(y.mul_(leaf({1, 2, 3}, {3})), Error);
  y.sum().backward();
  EXPECT_TENSOR(x.grad(), {2}, {2, 2});
}

TEST(InPlaceTest, SavedTensorsAreWatched) {
  const Tensor x = leaf({1, 2}, {2});
  const Tensor h = x * 2.0;
  const Tensor y = square(h);
  h.add_(x);
  EXPECT_WEFT_ERROR(y.sum().backward(), InvalidArgument, "[square]");
}

// --- Views ---------------------------------------------------------------------------------------

TEST(ViewTest, AWriteReachesTheHistoryOfTheBase) {
  const Tensor x = leaf({1, 2, 3, 4}, {2, 2}), w = leaf({5, 6}, {2});
  const Tensor y = x * 2.0;
  const Tensor view = y[0];
  view.mul_(w);
  EXPECT_TENSOR(y, ({2, 2}), {10, 24, 6, 8});
  (y * make({1, 10, 100, 1000}, {2, 2}, DType::f64)).sum().backward();
  EXPECT_TENSOR(x.grad(), ({2, 2}), {10, 120, 200, 2000});
  EXPECT_TENSOR(w.grad(), {2}, {2, 40});
}

// Each write goes to a view of a clone of x[0], and its result to other views.
TEST(ViewTest, WritesThroughViewsOfAllKinds) {
  const auto write = [](const char* name, auto view, const Shape& b) {
    check(
        name,
        [&](const Tensor& y, const Tensor& w) {
          const Tensor before = y.t();
          const Tensor part = view(y);
          part.mul_(w).add_(w);
          view(y).sub_(part.exp());
          y.mul_(before.t()).add_(part.sum());
        },
        {3, 4}, b);
  };
  write("row", [](const Tensor& y) { return y[1]; }, {4});
  write("element", [](const Tensor& y) { return y[1][2]; }, {});
  write("column", [](const Tensor& y) { return y.select(1, -1); }, {3});
  write("slice", [](const Tensor& y) { return y.slice(1, 0, 4, 2); }, {3, 2});
  write("no rows", [](const Tensor& y) { return y.slice(0, 1, 1); }, {0, 4});
  write("transpose", [](const Tensor& y) { return y.t().slice(0, 1, 3); }, {2, 3});
  write("reshape", [](const Tensor& y) { return y.reshape({2, 6}).narrow(1, 2, 3); }, {2, 3});
  write("diagonal", [](const Tensor& y) { return y.diagonal(1); }, {3});
  write("windows", [](const Tensor& y) { return y.unfold(1, 2, 2); }, {3, 2, 2});
  write("piece", [](const Tensor& y) { return chunk(y, 2, 1)[1]; }, {3, 2});
  write("all", [](const Tensor& y) { return y.flatten(); }, {12});
}

TEST(ViewTest, WritesOfEveryKindThroughAView) {
  const Tensor at = from_vector<std::int64_t>({2, 0}, {2});
  const auto write = [](const char* name, auto f) {
    check(name, [&](const Tensor& y, const Tensor& w) { f(y[1], w); }, {2, 3}, {3});
  };
  write("copy_", [](const Tensor& v, const Tensor& w) { v.copy_(w); });
  write("fill_", [](const Tensor& v, const Tensor&) { v.fill_(2); });
  write("zero_", [](const Tensor& v, const Tensor&) { v.zero_(); });
  write("div_", [](const Tensor& v, const Tensor& w) { v.div_(w); });
  write("exp_", [](const Tensor& v, const Tensor& w) { v.mul_(w).exp_(); });
  write("add_", [](const Tensor& v, const Tensor& w) { v.add_(w, 2).add_(1).mul_(3); });
  write("scatter_",
        [&](const Tensor& v, const Tensor& w) { v.scatter_(0, at, w.narrow(0, 0, 2)); });
  write("scatter_", [&](const Tensor& v, const Tensor&) { v.scatter_(0, at, 3); });
}

TEST(ViewTest, WritingIntoAViewOfALeafIsRefused) {
  const Tensor x = leaf({1, 2}, {2});
  EXPECT_WEFT_ERROR(x[0].mul_(3), InvalidArgument,
                    "[mul_] writes into a view of a leaf that requires a gradient");
  EXPECT_WEFT_ERROR(x[0] = 3, InvalidArgument, "do it under NoGrad");
  EXPECT_TENSOR(x, {2}, {1, 2});
  (x * 2.0)[0].detach().mul_(3);  // not recorded
  const NoGrad no_grad;
  x[0] = 3;
  EXPECT_TENSOR(x, {2}, {3, 2});
}

TEST(ViewTest, APlainTensorJoinsTheTapeByAView) {
  const Tensor w = leaf({3, 4}, {2});
  const Tensor buffer = zeros({2, 2}, DType::f64);
  buffer[0] = w;
  buffer.select(1, 1).add_(w);
  EXPECT_TENSOR(buffer, ({2, 2}), {3, 7, 0, 4});
  (buffer * make({1, 10, 100, 1000}, {2, 2}, DType::f64)).sum().backward();
  EXPECT_TENSOR(w.grad(), {2}, {11, 1010});
}

// The view buffer[0], a temporary, is no other holder of the memory.
TEST(ViewTest, APlainTensorJoinsTheTapeByAViewOfAView) {
  const Tensor w = leaf({3, 4}, {2});
  const Tensor buffer = zeros({2, 3}, DType::f64);
  const Tensor h = w * 2.0;
  buffer[0][1] = h[0];
  EXPECT_TRUE(buffer.requires_grad());
  buffer[1].slice(0, 1, 3).copy_(h);
  buffer.narrow(1, 0, 2)[1].narrow(0, 0, 1) += h.slice(0, 1, 2);
  buffer.slice(1, 2, 3).select(1, 0)[0] = h[1] * h[0];
  EXPECT_TENSOR(buffer, ({2, 3}), {0, 6, 48, 8, 6, 8});
  (buffer * make({1, 10, 100, 1000, 1e4, 1e5}, {2, 3}, DType::f64)).sum().backward();
  // The product's gradients are those of 400 w[0] w[1].
  EXPECT_TENSOR(w.grad(), {2}, {2 * (10 + 1e4) + 400 * 4, 2 * (1000 + 1e5) + 400 * 3});
}

TEST(ViewTest, WritesIntoAPlainTensorHaveDerivativesOfEveryOrder) {
  const auto f = [](std::span<const Tensor> in) {
    const Tensor buffer = zeros({2, 3}, DType::f64);
    buffer[0][1] = in[0][0] * in[0][1];
    buffer[1] = in[1] * in[1];
    buffer[1].slice(0, 1, 3).copy_(in[0] * in[1].slice(0, 0, 2));
    buffer.slice(0, 0, 1).mul_(in[1]);
    return std::vector{buffer * buffer};
  };
  const std::vector<Tensor> inputs{leaf({0.3, -0.7}, {2}), leaf({0.9, 1.1, -0.4}, {3})};
  autograd::gradcheck("writes", f, inputs);
  autograd::gradgradcheck("writes", f, inputs);
}

// The other handles of the memory would not know about w.
TEST(ViewTest, WritingTheTapeIntoSharedPlainMemoryIsRefused) {
  const Tensor w = leaf({3, 4}, {2});
  const Tensor buffer = zeros({2, 2}, DType::f64);
  const Tensor other = buffer.reshape({4});
  EXPECT_WEFT_ERROR(buffer[0].copy_(w), Unsupported, "memory that other tensors share");
  EXPECT_TENSOR(buffer, ({2, 2}), {0, 0, 0, 0});
  buffer[0].copy_(w.detach());
  EXPECT_TENSOR(buffer, ({2, 2}), {3, 4, 0, 0});
}

TEST(ViewTest, AViewFromBeforeAChangeFollowsIt) {
  const Tensor x = leaf({1, 2}, {2});
  const Tensor y = x * 2.0;
  const Tensor before = y[0];
  const Tensor of_view = before.reshape({1});
  const Tensor twice = y.unsqueeze(0).expand({2, 2});
  y.mul_(x);
  (before + of_view.sum()).backward();
  EXPECT_TENSOR(x.grad(), {2}, {8, 0});
  EXPECT_WEFT_ERROR(twice * 2.0, Unsupported, "take the view again");
}

TEST(ViewTest, AssignmentWritesAndDoesNotRebind) {
  const Tensor x = make({1, 2, 3, 4}, {2, 2});
  x[0] = 5.0;
  x[1][0] = 7;
  EXPECT_TENSOR(x, ({2, 2}), {5, 5, 7, 4});
  x[0] = x[1];
  x[1] += 1.0;
  EXPECT_TENSOR(x, ({2, 2}), {7, 4, 8, 5});
  x.select(1, 1) = make({1}, {1});
  EXPECT_TENSOR(x, ({2, 2}), {7, 1, 8, 1});
  Tensor row = x[0];
  row = x[1];  // another handle
  EXPECT_TENSOR(x, ({2, 2}), {7, 1, 8, 1});
  EXPECT_TENSOR(row, {2}, {8, 1});
  EXPECT_WEFT_ERROR(x[0] = ones({3}), Shape, "[copy_]");
  EXPECT_WEFT_ERROR(x[0] = Tensor(), InvalidArgument, "undefined");
  // To write into a new tensor would do nothing.
  EXPECT_WEFT_ERROR(x[x.gt(1)] = 0, InvalidArgument,
                    "[=] assigns to a temporary ([2]) that nobody else holds");
  EXPECT_WEFT_ERROR(x[x > 1] += 1.0, InvalidArgument, "assigns to a temporary");
  EXPECT_WEFT_ERROR(x[x > 1] *= ones({2}), InvalidArgument, "assigns to a temporary");
  EXPECT_WEFT_ERROR(x.clone() = x, InvalidArgument, "masked_fill_");
}

TEST(ViewTest, ViewsOfLeavesSurviveAnUpdateWithoutTape) {
  const Tensor w = leaf({1, 2}, {2});
  const Tensor view = w.reshape({2, 1});
  {
    const NoGrad no_grad;
    w.mul_(2);
  }
  view.sum().backward();
  EXPECT_TENSOR(w.grad(), {2}, {1, 1});
}

TEST(ViewTest, NothingToDoGivesTheSameTensor) {
  const Tensor x = leaf({1, 2}, {2});
  EXPECT_TRUE(x.contiguous().same(x));
  EXPECT_TRUE(x.to(DType::f64).same(x));
  EXPECT_TRUE(x.to(x.device()).same(x));
  EXPECT_TRUE(x.is_leaf());
}

// A reshape that copies does not keep its base's memory.
TEST(ViewTest, AReshapeThatCopiesIsNoView) {
  const Tensor x = some({2, 3}, DType::f64).set_requires_grad();
  const Tensor y = (x * 1.0).t().reshape({6});
  y.mul_(2);
  y.sum().backward();
  EXPECT_TENSOR(x.grad(), ({2, 3}), {2, 2, 2, 2, 2, 2});
}

// --- relu in the memory of its operand -----------------------------------------------------------

TEST(ReluTest, InPlaceOfATemporary) {
  const Tensor x = leaf({-1, 2}, {2});
  Tensor h = x * 2.0;
  const void* address = h.raw_data();
  const Tensor y = relu(std::move(h));
  EXPECT_EQ(y.raw_data(), address);
  EXPECT_TENSOR(y, {2}, {0, 4});
  y.sum().backward();
  EXPECT_TENSOR(x.grad(), {2}, {0, 2});
}

TEST(ReluTest, InPlaceWithoutTape) {
  Tensor h = make({-1, 2}, {2});
  const void* address = h.raw_data();
  EXPECT_EQ(relu(std::move(h)).raw_data(), address);
  const Tensor x = leaf({-1, 2}, {2});
  Tensor k = x * 2.0;
  const NoGrad no_grad;
  const Tensor y = relu(std::move(k));
  EXPECT_FALSE(y.requires_grad());
  EXPECT_TENSOR(y, {2}, {0, 4});
}

// A reshape of a temporary gives its memory to the result alone.
TEST(ReluTest, InPlaceOfAReshapedTemporary) {
  const Tensor x = leaf({-1, 2, -3, 4}, {4});
  const auto in_place = [&](auto reshape, const Shape& shape) {
    x.set_grad({});
    Tensor h = x * 2.0;
    const void* address = h.raw_data();
    const Tensor y = relu(reshape(std::move(h)));
    EXPECT_EQ(y.raw_data(), address);
    EXPECT_TENSOR(y, (shape), {0, 4, 0, 8});
    y.sum().backward();
    EXPECT_TENSOR(x.grad(), {4}, {0, 2, 0, 2});
  };
  in_place([](Tensor h) { return std::move(h).reshape({2, 2}); }, {2, 2});
  in_place([](Tensor h) { return std::move(h).unflatten(0, {2, 2}); }, {2, 2});
  in_place([](Tensor h) { return std::move(h).reshape({2, 2}).flatten(); }, {4});
}

TEST(ReluTest, NotOfAReshapedTensorThatIsStillHeld) {
  const Tensor x = leaf({-1, 2}, {2});
  const Tensor h = x * 2.0;
  Tensor second = h;
  EXPECT_TENSOR(relu(std::move(second).reshape({2, 1})), ({2, 1}), {0, 4});
  EXPECT_TENSOR(h, {2}, {-2, 4});

  const Tensor pair = make({-1, 2, 3, 4}, {2, 2}) * x;  // for a view, the base's memory
  EXPECT_TENSOR(relu(pair[0].reshape({2, 1})), ({2, 1}), {1, 4});
  EXPECT_TENSOR(pair, ({2, 2}), {1, 4, -3, 8});

  relu(tanh(x).reshape({2, 1})).sum().backward();  // tanh's rule needs its output
  const double t = std::tanh(2.0);
  EXPECT_NEAR(x.grad().to_vector<double>()[1], 1 - t * t, 1e-12);

  Tensor leaf_itself = leaf({-1, 2}, {2});
  const Tensor again = leaf_itself;
  relu(std::move(leaf_itself).reshape({2, 1})).sum().backward();
  EXPECT_TENSOR(again, {2}, {-1, 2});
  EXPECT_TENSOR(again.grad(), {2}, {0, 1});
}

// Writing to it is a normal in-place change: it is no view whose base would have to change, too.
TEST(ViewTest, AReshapedTemporaryIsNoView) {
  const Tensor x = leaf({1, 2}, {2});
  const Tensor y = (x * 2.0).reshape({2, 1});
  y.mul_(3);
  y.sum().backward();
  EXPECT_TENSOR(x.grad(), {2}, {6, 6});
  Tensor h = x * 2.0;
  const Tensor held = h;
  const Tensor view = std::move(h).reshape({2, 1});
  view.mul_(3);
  held[0].reshape({1, 1}).mul_(5);
  x.set_grad({});
  held.sum().backward();
  EXPECT_TENSOR(x.grad(), {2}, {30, 6});
}

TEST(InPlaceTest, NumbersOfOtherKinds) {
  const Tensor whole = make({7, 8}, {2}, DType::i64);
  EXPECT_TENSOR(whole.add_(1).sub_(3).mul_(2).clamp_(11, 20), {2}, {11, 12});
  EXPECT_WEFT_ERROR(whole.add_(0.5), Dtype, "[add_] a tensor of i64 cannot take the number 0.5");
  EXPECT_WEFT_ERROR(whole.div_(2), Dtype, "[div_] the result is f32");
  EXPECT_WEFT_ERROR(whole.clamp_(0.5), Dtype, "[clamp_] the result is f32");
  EXPECT_WEFT_ERROR(whole.exp_(), Dtype, "[exp_]");
  EXPECT_WEFT_ERROR(whole.masked_fill_(whole, 1), Dtype, "[masked_fill] mask: got i64");
  const Tensor mask = ones({3, 2}, DType::boolean);
  EXPECT_WEFT_ERROR(whole.masked_fill_(mask, 1), Shape, "[masked_fill_] mask: got [3,2]");
  EXPECT_WEFT_ERROR(whole.addcdiv_(whole, whole), Dtype, "[addcdiv_] got a of i64 and b of i64");
  EXPECT_TENSOR(make({1, 2}, {2}).div_(3), {2}, {1.f / 3, 2.f / 3});
  EXPECT_TENSOR(make({1, 5}, {2}).clamp_({}, 2), {2}, {1, 2});
  EXPECT_WEFT_ERROR(make({1}, {1}).clamp_({}), InvalidArgument, "[clamp] needs a bound");
}

template <class Use>
void expect_copy(const Tensor& value, Use use) {
  Tensor h = value;
  const std::vector<double> before = testing::values_of(value);
  const Tensor y = relu(std::move(h));
  EXPECT_NE(y.raw_data(), value.raw_data());
  EXPECT_EQ(testing::values_of(value), before);
  use(y);
}

TEST(ReluTest, NotWhenSomebodyElseHoldsIt) {
  const Tensor x = leaf({-1, 2}, {2});
  expect_copy(x * 2.0, [](const Tensor&) {});  // a second handle

  Tensor h = x * 2.0;
  const Tensor detached = h.detach();  // a second view of the memory
  const Tensor y = relu(std::move(h));
  EXPECT_TENSOR(detached, {2}, {-2, 4});

  Tensor leaf_itself = leaf({-1, 2}, {2});
  const Tensor of_leaf = relu(std::move(leaf_itself));
  EXPECT_TENSOR(of_leaf, {2}, {0, 2});

  const Tensor expanded = relu(make({2}, {1}).expand({3}));  // one element in three places
  EXPECT_TENSOR(expanded, {3}, {2, 2, 2});

  std::vector<double> host{-1, 2};
  const Tensor of_host = relu(borrow(std::span(host), {2}));
  EXPECT_EQ(host, (std::vector<double>{-1, 2}));
  EXPECT_TENSOR(of_host, {2}, {0, 2});
}

TEST(ReluTest, NotWhenTheTapeNeedsIt) {
  const Tensor x = leaf({-1, 2}, {2});
  relu(tanh(x)).sum().backward();  // tanh's rule needs its output
  const double t = std::tanh(2.0);
  EXPECT_NEAR(x.grad().to_vector<double>()[1], 1 - t * t, 1e-12);

  const Tensor w = leaf({1, 1}, {2});
  Tensor h = x * w;
  const Tensor s = square(h);  // saved h
  const Tensor y = relu(std::move(h));
  autograd::zero_grad(x);
  (s + y).sum().backward();
  EXPECT_TENSOR(x.grad(), {2}, {-2, 5});
}

TEST(ReluTest, OfAViewCopies) {
  const Tensor x = leaf({-1, 2}, {2});
  const Tensor h = x * 2.0;
  const Tensor y = relu(h.reshape({2, 1}));
  EXPECT_TENSOR(h, {2}, {-2, 4});
  y.sum().backward();
  EXPECT_TENSOR(x.grad(), {2}, {0, 2});
}

}  // namespace
}  // namespace weft
