// Operations that are composed of others, and methods of Tensor: values and gradients against
// PyTorch's, integers, special values, errors.
#include <cmath>
#include <functional>
#include <string>
#include <utility>

#include "weft/autograd/ops.h"
#include "weft/tests/autograd/against_goldens.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/device_param.h"
#include "weft/tests/goldens.h"
#include "weft/tests/tensor/ramp.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

// What reads like two dimensions and would be one with a correction.
template <class X>
concept TakesTwoNumbers = requires(const X& x) { x.var(0, 1); } || requires(const X& x) {
  x.std(0, 1, true);
} || requires(const X& x) { var(x, 0, 1); } || requires(const X& x) { weft::std(x, 0, 1); };
static_assert(!TakesTwoNumbers<Tensor>);
// PyTorch's older form, whose flag is a correction of 1 or 0.
static_assert(requires(const Tensor& x) {
  x.var(0, true);
  weft::std(x, 0, false);
});

using testing::Inputs;
using testing::kAllDTypes;
using testing::kFloating;
using testing::layouts;
using testing::make;
using testing::near_values;
using testing::ramp;
using testing::some;
using testing::values_of;

const testing::Goldens goldens("tests/autograd/composed_goldens");

using F = std::function<Tensor(Inputs)>;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

class ComposedTest : public testing::DeviceParam {};
WEFT_FOR_EACH_DEVICE(ComposedTest);

// A few roundings in f64, since the sums are short.
constexpr double kTolerance = 1e-14;

void check(const char* name, const F& f, const std::vector<Tensor>& inputs,
           double tolerance = kTolerance) {
  testing::expect_goldens(goldens, name, f, inputs, tolerance);
}

#define ONE(name, x, ...) check(#name, [=](Inputs in) { return in[0].__VA_ARGS__; }, {x})
#define TWO(name, a, b, f) check(#name, [](Inputs in) { return f(in[0], in[1]); }, {a, b})

TEST_P(ComposedTest, Reductions) {
  const Tensor x = ramp({2, 3, 4}) * 4;
  ONE(std_all_drop, x, std());
  ONE(std_all_keep, x, std({0, 1, 2}, 1, true));
  ONE(std_one_drop, x, std({1}));
  ONE(std_one_keep, x, std({-2}, 1, true));
  ONE(std_two_drop, x, std({0, 2}));
  ONE(std_two_keep, x, std({2, 0}, 1, true));
  ONE(std_population, x, std({1}, 0));
  ONE(std_constant, ones({3}, DType::f64), std());
  ONE(logsumexp_all_drop, x, logsumexp());
  ONE(logsumexp_all_keep, x, logsumexp({}, true));
  ONE(logsumexp_one_drop, x, logsumexp({1}));
  ONE(logsumexp_one_keep, x, logsumexp({1}, true));
  ONE(logsumexp_two_drop, x, logsumexp({0, 2}));
  ONE(logsumexp_two_keep, x, logsumexp({0, 2}, true));
  // PyTorch computes the gradient from exp(x - y), where y has 13 digits after the point.
  check(
      "logsumexp_large", [](Inputs in) { return in[0].logsumexp({1}); },
      {make({1000, 999, -1000, -1001, -kInf, 2}, {3, 2}, DType::f64)}, 1e-12);
  EXPECT_TRUE(
      near_values(logsumexp(make({-kInf, -kInf, kInf, 1, kNaN, 1}, {3, 2}, DType::f64), {1}),
                  goldens["logsumexp_infinite"], 0));
  EXPECT_TRUE(near_values(logsumexp(zeros({0, 2}), {0}), {-kInf, -kInf}, 0));
  EXPECT_EQ(logsumexp(zeros({0, 2}), {1}).shape(), Shape{0});
  EXPECT_EQ(logsumexp(make({1, 2}, {2}, DType::i64)).dtype(), DType::f32);
  EXPECT_TRUE(std::isnan(ones({1}).std().item<double>()));
  EXPECT_EQ(zeros({2, 0}).std({1}).shape(), Shape{2});
}

// As in PyTorch: without a dimension the NaNs, or all elements equal to the median, share the
// gradient; with one it goes to the element that was chosen.
TEST_P(ComposedTest, MedianOfEqualElements) {
  const Tensor x = make({2, 1, 2, 3, 2, 9}, {6}, DType::f64).set_requires_grad();
  median(x).backward();
  EXPECT_TENSOR(x.grad() * 3, ({6}), {1, 0, 1, 0, 1, 0});
  const Tensor y = make({2, kNaN, 2, kNaN}, {4}, DType::f64).set_requires_grad();
  median(y).backward();
  EXPECT_TENSOR(y.grad(), ({4}), {0, 0.5, 0, 0.5});
  const Tensor z = make({2, kNaN, 2, kNaN}, {4}, DType::f64).set_requires_grad();
  median(z, 0).values.backward();
  EXPECT_TENSOR(z.grad(), ({4}), {0, 1, 0, 0});
}

TEST_P(ComposedTest, WritesOutOfRange) {
  const Tensor at = make({1, 2, -1, 0}, {4}, DType::i64);
  const Tensor x = zeros({2}), source = make({1, 2, 3, 4}, {4}).set_requires_grad();
  const std::pair<const char*, std::function<Tensor()>> calls[] = {
      {"[index_add]", [&] { return index_add(x, 0, at, source); }},
      {"[scatter_add]", [&] { return scatter_add(x, 0, at, source); }},
      {"[scatter]", [&] { return scatter(x, 0, at, source); }},
      {"[scatter_]", [&] { return zeros({2}).scatter_(0, at, source); }}};
  for (const auto& [op, call] : calls) {
    Tensor y;
    EXPECT_WEFT_ERROR(testing::waited(y = call()), InvalidArgument, op + std::string(" index 2"));
    if (x.device().is_cpu()) continue;
    EXPECT_TENSOR(y, ({2}), {4, 1});
    source.set_grad({});
    y.sum().backward();
    EXPECT_TRUE(near_values(source.grad(), {1, kNaN, kNaN, 1}, 0));
  }
}

TEST_P(ComposedTest, LargestAndSmallest) {
  const Tensor x = make({3, kNaN, 1, 5, -kInf, 5}, {2, 3});
  const auto [values, indices] = topk(x, 2);
  EXPECT_TRUE(near_values(values, {kNaN, 3, 5, 5}, 0));
  EXPECT_EQ(values_of(indices), (std::vector<double>{1, 0, 0, 2}));
  EXPECT_EQ(values_of(topk(x, 2, 1, false).indices), (std::vector<double>{2, 0, 1, 0}));
  EXPECT_EQ(values_of(topk(x, 1, 0).indices), (std::vector<double>{1, 0, 1}));
  EXPECT_EQ(topk(x, 0, 0).values.shape(), (Shape{0, 3}));
  EXPECT_EQ(topk(x[0][0], 1).indices.item<std::int64_t>(), 0);
  EXPECT_WEFT_ERROR(topk(x, 4), InvalidArgument,
                    "[topk] k: got 4, expected 0 to 3, the length of dimension 1 of [2,3]");
  EXPECT_WEFT_ERROR(topk(x, -1), InvalidArgument, "[topk] k: got -1");
  EXPECT_WEFT_ERROR(topk(x, 1, 2), Shape, "[topk] dimension: got 2");
}

// The expected values are from PyTorch 2.11.
TEST_P(ComposedTest, GradientsWithoutDegreesOfFreedom) {
  for (const double correction : {3.0, 4.0}) {
    const auto gradient = [&](const Tensor& x, auto f) {
      const Tensor leaf = x.detach().set_requires_grad();
      f(leaf).backward();
      return leaf.grad();
    };
    const auto var_of = [&](const Tensor& t) { return var(t, {}, correction); };
    const auto std_of = [&](const Tensor& t) { return weft::std(t, {}, correction); };
    const Tensor x = make({1, 2, 3}, {3}), same = full({3}, 2.0);
    EXPECT_TRUE(near_values(gradient(x, var_of), {kInf, kNaN, kInf}, 0));
    EXPECT_TRUE(near_values(gradient(same, var_of), {kNaN, kNaN, kNaN}, 0));
    EXPECT_TRUE(near_values(gradient(x, std_of), {kNaN, kNaN, kNaN}, 0));
    // With dims PyTorch divides by n - correction without a lower bound.
    const auto along = [&](const Tensor& t) { return var(t, {0}, correction); };
    const double slope = 2 / (3 - correction);
    EXPECT_TRUE(near_values(gradient(x, along), {-slope, slope * 0, slope}, 0));
  }
}

TEST_P(ComposedTest, GradientsOfTheSpreadOfInfinities) {
  for (const std::vector<double>& x : {std::vector<double>{kInf, 1, 2}, {1, kInf, 2}}) {
    const Tensor leaf = make(x, {3}).set_requires_grad();
    const Tensor y = var(leaf);
    y.backward();
    EXPECT_TRUE(std::isnan(y.item<double>()));
    for (std::size_t i = 0; i < 3; ++i) {
      const double got = values_of(leaf.grad())[i];
      EXPECT_TRUE(x[i] == kInf ? std::isnan(got) : got == -kInf) << i << ": " << got;
    }
  }
}

TEST_P(ComposedTest, GradientsOfNaNExtremes) {
  const auto gradient = [](auto f) {
    const Tensor leaf = make({kNaN, 1, kNaN, 2}, {4}).set_requires_grad();
    f(leaf).backward();
    return leaf.grad();
  };
  for (const bool largest : {true, false}) {
    EXPECT_TENSOR(gradient([&](const Tensor& t) { return largest ? max(t) : min(t); }), ({4}),
                  {0.5, 0, 0.5, 0});
    EXPECT_TRUE(
        near_values(gradient([&](const Tensor& t) { return largest ? max(t, {0}) : min(t, {0}); }),
                    {kNaN, kNaN, kNaN, kNaN}, 0));
  }
}

TEST_P(ComposedTest, ExtremesWithTheirPlaces) {
  const Tensor x = make({3, 1, 3, -2, kNaN, 5, kNaN, 7, -1, -1, -4, -4}, {3, 4}, DType::f64);
  ONE(max_of_dim_0, x, max(0).values);
  ONE(max_of_dim_1, x, max(-1).values);
  ONE(min_of_dim_0, x, min(0).values);
  ONE(min_of_dim_1, x, min(1).values);
  EXPECT_EQ(values_of(max(x, 0).indices), goldens["max_of_dim_0_at"]);
  EXPECT_EQ(values_of(max(x, 1).indices), goldens["max_of_dim_1_at"]);
  EXPECT_EQ(values_of(min(x, 0).indices), goldens["min_of_dim_0_at"]);
  EXPECT_EQ(values_of(min(x, 1).indices), goldens["min_of_dim_1_at"]);
  const Tensor whole = ramp({2, 3, 4}) * 4;
  for (const Tensor& t : layouts(whole)) {
    EXPECT_EQ(values_of(t.argmax()), goldens["argmax"]);
    EXPECT_EQ(values_of(t.argmin()), goldens["argmin"]);
  }
  EXPECT_EQ(values_of(argmax(x)), goldens["argmax_nan"]);
  EXPECT_EQ(values_of(argmin(x)), goldens["argmin_nan"]);
  EXPECT_EQ(argmax(x, {}, true).shape(), (Shape{1, 1}));

  for (const DType dtype : kAllDTypes) {
    const auto [values, indices] = max(make({0, 1, 1, 1, 0, 0}, {2, 3}, dtype), 1, true);
    EXPECT_EQ(values.dtype(), dtype);
    EXPECT_TENSOR(values, ({2, 1}), {1, 1});
    EXPECT_TENSOR(indices, ({2, 1}), {1, 0});
  }
  EXPECT_TENSOR(max(scalar(3), 0).values, ({}), {3});
  EXPECT_EQ(max(zeros({0, 2}), 1).indices.shape(), Shape{0});
  EXPECT_TENSOR(x.slice(0, 2, 3).max({1}), ({1}), {-1});  // in braces: without indices
  EXPECT_WEFT_ERROR(max(zeros({0, 2}), 0), Shape,
                    "[max] no elements to choose from: dimension 0 of [0,2] is empty");
  EXPECT_WEFT_ERROR(min(ones({2}), 1), Shape, "[min] dimension: got 1");
  EXPECT_WEFT_ERROR(ones({2}).max(1LL << 32), Shape, "[max] dimension: got 4294967296");
  EXPECT_WEFT_ERROR(argmin(zeros({2, 0})), Shape, "[argmin] no elements to choose from");

  // The caller owns the indices: changing them does not affect backward.
  const Tensor leaf = ones({2, 2}).set_requires_grad();
  const auto [values, indices] = max(leaf, 0);
  indices.fill_(1);
  values.sum().backward();
  EXPECT_TENSOR(leaf.grad(), ({2, 2}), {1, 1, 0, 0});
}

TEST_P(ComposedTest, ProductsOfVectors) {
  const auto up = [](const Shape& shape) { return ramp(shape) + 0.5; };
  TWO(dot, ramp({5}), up({5}), dot);
  TWO(matmul_vectors, ramp({4}), up({4}), matmul);
  TWO(matmul_row, ramp({3}), up({3, 2}), matmul);
  TWO(matmul_column, ramp({2, 3}), up({3}), matmul);
  TWO(matmul_rows, ramp({3}), up({2, 3, 2}), matmul);
  TWO(matmul_columns, ramp({2, 2, 3}), up({3}), matmul);
  for (const DType dtype : kAllDTypes) {
    if (dtype == DType::boolean) continue;
    const Tensor a = make({1, 2, 3}, {3}, dtype);
    EXPECT_EQ(a.dot(a).dtype(), dtype);
    EXPECT_TENSOR(a.dot(a), ({}), {14});
  }
  EXPECT_TENSOR(dot(zeros({0}), zeros({0})), ({}), {0});
  EXPECT_TENSOR(matmul(zeros({2, 0}), zeros({0})), ({2}), {0, 0});
  EXPECT_EQ(matmul(zeros({3}), zeros({0, 3, 2})).shape(), (Shape{0, 2}));
  EXPECT_TENSOR(raw::matmul(make({1, 2}, {2}), make({1, 2, 3, 4}, {2, 2})), ({2}), {7, 10});
  EXPECT_TENSOR(raw::matmul(make({1, 2, 3, 4}, {2, 2}), make({1, 2}, {2})), ({2}), {5, 11});
  EXPECT_WEFT_ERROR(dot(ones({2}), ones({3})), Shape, "[dot] lengths: a has 2, b has 3");
  EXPECT_WEFT_ERROR(dot(ones({2, 1}), ones({2})), Shape, "[dot] needs two vectors");
  EXPECT_WEFT_ERROR(dot(ones({2}), ones({2}, DType::f64)), Dtype, "[dot] dtype: a is f32");
  EXPECT_WEFT_ERROR(matmul(ones({2}), ones({3})), Shape, "[matmul] inner dimensions: a has 2");
  EXPECT_WEFT_ERROR(matmul(ones({}), ones({3})), Shape, "[matmul] needs vectors or matrices");
}

TEST_P(ComposedTest, Masks) {
  const Tensor m = ramp({3, 4}) * 4, mask = gt(m, 0.3);
  ONE(masked_fill, m, masked_fill(mask, -7.5));
  ONE(masked_fill_row, m, masked_fill(mask[1], kInf));
  ONE(masked_select, m, masked_select(mask));
  ONE(masked_select_wide, ramp({4}), masked_select(mask));
  check("mask_of_rows", [=](Inputs in) { return in[0][mask.select(1, 0)]; }, {m});
  check("mask_of_front", [=](Inputs in) { return in[0][mask]; }, {ramp({3, 4, 2})});
  const Tensor truth = make({1, 0, 1}, {3}, DType::boolean);
  for (const DType dtype : kAllDTypes) {
    const Tensor x = make({0, 1, 1}, {3}, dtype);
    EXPECT_EQ(masked_fill(x, truth, 1).dtype(), dtype);
    EXPECT_TENSOR(masked_fill(x, truth, 1), ({3}), {1, 1, 1});
    EXPECT_TENSOR(x[truth], ({2}), {0, 1});
  }
  EXPECT_EQ(ones({2, 3})[zeros({2}, DType::boolean)].shape(), (Shape{0, 3}));
  EXPECT_EQ(zeros({0, 3})[zeros({0}, DType::boolean)].shape(), (Shape{0, 3}));
  EXPECT_TENSOR(scalar(3).masked_select(ones({}, DType::boolean)), ({1}), {3});
  EXPECT_WEFT_ERROR(ones({3})[zeros({2}, DType::boolean)], Shape,
                    "[masked_select] mask: got [2], which is not the first dimensions of [3]");
  EXPECT_WEFT_ERROR(ones({3})[scalar(1, DType::boolean)], Shape, "mask: got []");
  EXPECT_WEFT_ERROR(ones({3})[ones({3})], Dtype, "[masked_select] mask: got f32, expected bool");
  EXPECT_WEFT_ERROR(masked_fill(ones({3}), ones({2}, DType::boolean), 0), Shape,
                    "do not broadcast");
  EXPECT_WEFT_ERROR(masked_fill(ones({3}), ones({3}), 0), Dtype, "[masked_fill] mask: got f32");
  EXPECT_WEFT_ERROR(masked_fill(ones({3}), ones({3}, DType::boolean), ones({1})), Shape,
                    "[masked_fill] value: got [1], expected []");
  EXPECT_WEFT_ERROR(masked_fill(ones({3}, DType::i64), ones({3}, DType::boolean), scalar(0.5)),
                    Dtype, "[masked_fill] value: got f32");
  EXPECT_WEFT_ERROR(masked_fill(ones({3}, DType::u8), ones({3}, DType::boolean), 300),
                    InvalidArgument, "[masked_fill] a tensor of u8 cannot hold 300");
  EXPECT_WEFT_ERROR(pad(ones({3}, DType::i32), {1, 0}, kNaN), InvalidArgument,
                    "[pad] a tensor of i32 cannot hold nan");
}

TEST_P(ComposedTest, Order) {
  ONE(repeat, ramp({2, 3}), repeat({2, 1, 3}));
  ONE(flip, ramp({2, 3, 4}), flip({0, 2}));
  ONE(roll, ramp({2, 5}), roll(2, 1));
  ONE(roll_back, ramp({3, 4}), roll(-7, -2));
  ONE(roll_all, ramp({3, 4}), roll(5));
  ONE(tril_m2, ramp({2, 3, 4}), tril(-2));
  ONE(tril_0, ramp({2, 3, 4}), tril());
  ONE(tril_1, ramp({2, 3, 4}), tril(1));
  ONE(tril_9, ramp({2, 3, 4}), tril(9));
  ONE(triu_m2, ramp({2, 3, 4}), triu(-2));
  ONE(triu_0, ramp({2, 3, 4}), triu());
  ONE(triu_1, ramp({2, 3, 4}), triu(1));
  ONE(triu_9, ramp({2, 3, 4}), triu(9));
  check("pad", [](Inputs in) { return pad(in[0], {1, 2, 0, 3}, -1.5); }, {ramp({2, 3, 2})});
  check("pad_reflect", [](Inputs in) { return pad(in[0], {1, 2, 0, 2}, "reflect"); },
        {ramp({2, 3, 3, 3})});
  check("pad_replicate", [](Inputs in) { return pad(in[0], {3, 1, 2, 0}, "replicate"); },
        {ramp({2, 3, 3, 3})});
  check("pad_circular", [](Inputs in) { return pad(in[0], {2, 0, 1, 3}, "circular"); },
        {ramp({2, 3, 3, 3})});
  // PyTorch's values.
  const Tensor four = arange(4.0);
  EXPECT_TENSOR(pad(four, {-1, 3}, "reflect"), ({6}), {1, 2, 3, 2, 1, 0});
  EXPECT_TENSOR(pad(four, {-1, 3}, "replicate"), ({6}), {1, 2, 3, 3, 3, 3});
  EXPECT_TENSOR(pad(four, {-1, 3}, "circular"), ({6}), {1, 2, 3, 1, 2, 3});
  EXPECT_TENSOR(pad(four, {1, -1}, "reflect"), ({4}), {1, 0, 1, 2});
  EXPECT_TENSOR(pad(four, {1, -1}, "replicate"), ({4}), {0, 0, 1, 2});
  EXPECT_TENSOR(pad(four, {1, -1}, "circular"), ({4}), {2, 0, 1, 2});
  EXPECT_WEFT_ERROR(pad(four, {-3, -2}, "replicate"), Shape, "[pad] dimension 0 of [4] has fewer");
  check("pad_crop", [](Inputs in) { return pad(in[0], {-1, 2, 1, -2}); }, {ramp({3, 4})});
  for (const DType dtype : kAllDTypes) {
    const Tensor x = make({0, 1, 1, 0}, {2, 2}, dtype);
    EXPECT_TENSOR(x.repeat({1, 2}), ({2, 4}), {0, 1, 0, 1, 1, 0, 1, 0});
    EXPECT_TENSOR(x.flip({0}), ({2, 2}), {1, 0, 0, 1});
    EXPECT_TENSOR(x.roll(1, 0), ({2, 2}), {1, 0, 0, 1});
    EXPECT_TENSOR(x.tril(), ({2, 2}), {0, 0, 1, 0});
    EXPECT_TENSOR(x.triu(), ({2, 2}), {0, 1, 0, 0});
    EXPECT_TENSOR(pad(x, {0, 1}, 1), ({2, 3}), {0, 1, 1, 1, 0, 1});
    for (const Tensor& y :
         {x.repeat({1, 2}), x.flip({0}), x.roll(1, 0), x.tril(), pad(x, {1, 1})}) {
      EXPECT_EQ(y.dtype(), dtype);
    }
  }
  // Several dimensions at once, as one after another.
  const Tensor all = ramp({2, 1, 3}).repeat({2, 3, 2, 2}), y = ramp({2, 1, 3}).repeat({1, 1, 1, 2});
  EXPECT_EQ(all.shape(), (Shape{2, 6, 2, 6}));
  EXPECT_TRUE(all.equal(y.repeat({1, 1, 2, 1}).repeat({1, 3, 1, 1}).repeat({2, 1, 1, 1})));
  // It copies even if there is nothing to do.
  const Tensor x = ones({2});
  EXPECT_NE(x.repeat({1}).storage(), x.storage());
  EXPECT_NE(x.repeat({1, 1}).storage(), x.storage());
  EXPECT_TRUE(scalar(3).repeat({4}).is_contiguous());
  EXPECT_NE(x.flip({}).storage(), x.storage());
  EXPECT_NE(x.roll(2, 0).storage(), x.storage());
  EXPECT_EQ(x.repeat({0}).shape(), Shape{0});
  EXPECT_EQ(ones({1, 1, 1, 1, 1, 1, 1, 2}).repeat({1, 1, 1, 1, 1, 1, 2, 0}).shape(),
            (Shape{1, 1, 1, 1, 1, 1, 2, 0}));
  EXPECT_EQ(zeros({0, 3}).flip({0, 1}).shape(), (Shape{0, 3}));
  EXPECT_EQ(zeros({0, 3}).roll(1, 0).shape(), (Shape{0, 3}));
  EXPECT_EQ(zeros({0, 3}).roll(1).shape(), (Shape{0, 3}));
  EXPECT_EQ(zeros({2, 0, 3}).tril().shape(), (Shape{2, 0, 3}));
  EXPECT_TENSOR(pad(zeros({0}), {1, 1}, 2), ({2}), {2, 2});
  EXPECT_TENSOR(scalar(3).flip({0}), ({}), {3});
  EXPECT_TENSOR(scalar(3).roll(1), ({}), {3});
  EXPECT_TENSOR(scalar(3).repeat({2}), ({2}), {3, 3});
  EXPECT_WEFT_ERROR(ones({2, 2}).repeat({2}), Shape, "[repeat] got 1 counts for [2,2]");
  EXPECT_WEFT_ERROR(ones({2}).repeat({-1}), InvalidArgument, "[repeat] negative count");
  EXPECT_WEFT_ERROR(ones({2}).flip({0, -1}), Shape, "[flip] dimension 0 appears twice");
  EXPECT_WEFT_ERROR(ones({2}).flip({1}), Shape, "[flip] dimension: got 1");
  EXPECT_WEFT_ERROR(ones({2}).roll(1, 1), Shape, "[roll] dimension: got 1");
  EXPECT_WEFT_ERROR(ones({2}).flip({1LL << 32}), Shape, "[flip] dimension: got 4294967296");
  EXPECT_WEFT_ERROR(ones({2}).roll(1, 1LL << 32), Shape, "[roll] dimension: got 4294967296");
  EXPECT_WEFT_ERROR(ones({3}).tril(), Shape, "[tril] needs matrices, got [3]");
  EXPECT_WEFT_ERROR(pad(ones({3}), {1}), Shape, "[pad] got 1 numbers for [3]");
  EXPECT_WEFT_ERROR(pad(ones({3}), {1, 1, 1, 1}), Shape, "[pad] got 4 numbers for [3]");
  for (const auto& pads : {std::vector<std::int64_t>{-2, -2},
                           {-4, 3},
                           {3, -4},
                           {kMin, kMax},
                           {kMax, kMin},
                           {kMin, kMin}}) {
    EXPECT_WEFT_ERROR(pad(ones({3}), pads), Shape,
                      "[pad] dimension 0 of [3] has fewer elements than the padding (" +
                          std::to_string(pads[0]) + ", " + std::to_string(pads[1]) +
                          ") takes away");
  }
  EXPECT_TENSOR(pad(ones({3}), {-3, 3}, 2), ({3}), {2, 2, 2});
  EXPECT_TENSOR(pad(ones({3}), {3, -3}, 2), ({3}), {2, 2, 2});
}

TEST_P(ComposedTest, OrderByNumbersOfAnySize) {
  // The diagonal is far away, so all elements are on one side of it.
  EXPECT_TENSOR(ones({2, 2}).tril(kMax), ({2, 2}), {1, 1, 1, 1});
  EXPECT_TENSOR(ones({2, 2}).tril(kMin), ({2, 2}), {0, 0, 0, 0});
  EXPECT_TENSOR(ones({2, 2}).triu(kMax), ({2, 2}), {0, 0, 0, 0});
  EXPECT_TENSOR(ones({2, 2}).triu(kMin), ({2, 2}), {1, 1, 1, 1});
  EXPECT_EQ(zeros({0, kMax}).tril(kMax).shape(), (Shape{0, kMax}));
  // 2^63 is 8 modulo 10, and -2^63 is -8.
  const Tensor x = arange(0, 10);
  EXPECT_TENSOR(x.roll(kMin, 0), ({10}), {8, 9, 0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_TENSOR(x.roll(kMax, 0), ({10}), {3, 4, 5, 6, 7, 8, 9, 0, 1, 2});
  const Tensor leaf = ones({10}).set_requires_grad();
  (leaf.roll(kMin) * x).sum().backward();
  EXPECT_TENSOR(leaf.grad(), ({10}), {2, 3, 4, 5, 6, 7, 8, 9, 0, 1});
  EXPECT_EQ(zeros({0, kMax}).flip({0, 1}).shape(), (Shape{0, kMax}));

  EXPECT_WEFT_ERROR(pad(ones({3}), {kMax, 0}), Shape, "[pad] 3 + 9223372036854775807 does not fit");
  EXPECT_WEFT_ERROR(pad(ones({3}), {kMax - 3, kMax}), Shape, "[pad] 9223372036854775807 + 92233");
  EXPECT_WEFT_ERROR(pad(ones({3, 3}), {kMax / 2, 0, kMax / 2, 0}), Shape,
                    "[pad] the number of elements of");
  EXPECT_WEFT_ERROR(ones({2}).repeat({kMax}), Shape,
                    "[repeat] 9223372036854775807 * 2 does not fit in 64 bits");
  EXPECT_WEFT_ERROR(ones({2}).repeat({kMax / 2, 2}), Shape, "[repeat] the number of elements of");
  EXPECT_WEFT_ERROR(scalar(1).repeat({kMax}), OutOfMemory, "");
  EXPECT_WEFT_ERROR(ones({1, 1, 1, 1, 1, 1, 1, 1}).repeat({kMax, 1, 1, 1, 1, 1, 1, 1}), OutOfMemory,
                    "");
  EXPECT_EQ(ones({2, 1}).repeat({0, kMax}).shape(), (Shape{0, kMax}));
  EXPECT_WEFT_ERROR(group_norm(zeros({2, 0}), kMax), Shape,
                    "[group_norm] 2 * 9223372036854775807 does not fit in 64 bits");
}

TEST_P(ComposedTest, TestsOfValues) {
  const Tensor x = make({0, -1.5, kInf, -kInf, kNaN, 3e38}, {6}, DType::f64);
  EXPECT_EQ(values_of(x.isnan()), goldens["isnan"]);
  EXPECT_EQ(values_of(x.isinf()), goldens["isinf"]);
  EXPECT_EQ(values_of(x.isfinite()), goldens["isfinite"]);
  for (const DType dtype : kAllDTypes) {
    const Tensor t = make({0, 1}, {2}, dtype);
    EXPECT_TENSOR(isnan(t), ({2}), {0, 0});
    EXPECT_TENSOR(isinf(t), ({2}), {0, 0});
    EXPECT_TENSOR(isfinite(t), ({2}), {1, 1});
    EXPECT_EQ(isnan(t).dtype(), DType::boolean);
    EXPECT_TRUE(allclose(t, t));
    EXPECT_TRUE(equal(t, t));
  }
  for (const DType dtype : kFloating) {
    const Tensor t = make({kInf, -kInf, kNaN}, {3}, dtype);
    EXPECT_TENSOR(isinf(t), ({3}), {1, 1, 0});
    EXPECT_TENSOR(isnan(t), ({3}), {0, 0, 1});
    EXPECT_FALSE(equal(t, t));
    EXPECT_TRUE(allclose(t, t, 1e-5, 1e-8, true));
  }
  const Tensor a = make({1, 1, 1, kInf, kInf, kNaN, 0, 1e9}, {8}, DType::f64);
  const Tensor b =
      make({1, 1 + 9e-6, 1 + 2e-5, kInf, -kInf, kNaN, 1e-9, 1e9 + 9e3}, {8}, DType::f64);
  EXPECT_EQ(values_of(isclose(a, b)), goldens["isclose"]);
  EXPECT_EQ(values_of(isclose(a, b, 0, 1e-5, true)), goldens["isclose_nan"]);
  EXPECT_FALSE(allclose(a, b));
  EXPECT_TRUE(allclose(ones({2, 3}), ones({3})));
  EXPECT_TRUE(allclose(zeros({0}), zeros({0})));
  EXPECT_TRUE(allclose(make({250}, {1}, DType::u8), make({251}, {1}, DType::u8), 0, 1));
  const Tensor large = from_vector(std::vector{kMax, kMax, kMax}, {3});
  const Tensor near = from_vector(std::vector{kMax - 1, kMax - 3, -kMax}, {3});
  EXPECT_TENSOR(isclose(large, near, 0, 2), ({3}), {1, 0, 0});
  EXPECT_TENSOR(isclose(large, near, 0, 0x1p63), ({3}), {1, 1, 0});
  EXPECT_TENSOR(isclose(large, near, 3), ({3}), {1, 1, 1});
  EXPECT_FALSE(equal(ones({2}), ones({1})));
  EXPECT_TRUE(equal(ones({2}), ones({2}, DType::i64)));
  EXPECT_WEFT_ERROR(allclose(ones({2}), ones({2}, DType::f64)), Dtype, "[isclose] dtype: a is f32");
  EXPECT_WEFT_ERROR(allclose(ones({2}), ones({3})), Shape, "do not broadcast");
  EXPECT_WEFT_ERROR(isclose(ones({2}), ones({2}), -1), InvalidArgument, "must not be negative");
}

TEST_P(ComposedTest, DivisionOfIntegersByZeroIsRefused) {
  for (const DType dtype : {DType::i64, DType::i32, DType::u8}) {
    const Tensor a = make({5, 7}, {2}, dtype), b = make({2, 0}, {2}, dtype);
    EXPECT_WEFT_ERROR(a % b, InvalidArgument, "[remainder] division by 0 of integers");
    EXPECT_WEFT_ERROR(floor_divide(a, b), InvalidArgument, "[floor_divide] division by 0");
    EXPECT_WEFT_ERROR(a % 0, InvalidArgument, "[remainder] division by 0");
    EXPECT_WEFT_ERROR(raw::binary_(BinaryOp::remainder, a, b), InvalidArgument,
                      "[remainder_] division by 0");
    EXPECT_WEFT_ERROR(ones({3}, dtype) % b, Shape, "[remainder]");
    EXPECT_WEFT_ERROR(floor_divide(ones({3}, dtype), b), Shape, "[floor_divide]");
    EXPECT_EQ((a % a.slice(0, 0, 0).sum().to(dtype).add(3)).dtype(), dtype);
  }
  const Tensor least = from_vector<std::int64_t>({std::numeric_limits<std::int64_t>::min()}, {1});
  EXPECT_TENSOR(floor_divide(least, -1), ({1}), {-0x1p63});
  EXPECT_TENSOR(least % -1, ({1}), {0});
  EXPECT_TRUE(near_values(ones({1}) % 0, {kNaN}, 0));
  EXPECT_WEFT_ERROR(ones({1}, DType::boolean) % ones({1}, DType::boolean), Dtype,
                    "[remainder] not defined for bool");
}

TEST_P(ComposedTest, OneSidedClamp) {
  EXPECT_TENSOR(clamp(make({-3, 0, 3}, {3}), 1), ({3}), {1, 1, 3});
  EXPECT_TENSOR(make({-3, 0, 3}, {3}, DType::i64).clamp({}, 1), ({3}), {-3, 0, 1});
  EXPECT_TENSOR(make({0, 200}, {2}, DType::u8).clamp(-7), ({2}), {0, 200});
  EXPECT_TENSOR(make({-5, 5}, {2}, DType::i32).clamp({}, 3e9), ({2}), {-5, 5});
  EXPECT_EQ(make({-3, 0}, {2}, DType::i64).clamp(0).dtype(), DType::i64);
  EXPECT_WEFT_ERROR(clamp(ones({2}), {}), InvalidArgument, "[clamp] needs a bound");
}

TEST_P(ComposedTest, MethodsAreTheFunctions) {
  const Tensor x = some({2, 3}, DType::f64, 0.2, 0.9), y = some({2, 3}, DType::f64, 0.2, 0.9, 2);
#define X(name) EXPECT_TRUE(equal(x.name(), weft::name(x))) << #name;
  WEFT_UNARY_METHODS(X)
#undef X
#define X(name)                                             \
  EXPECT_TRUE(equal(x.name(y), weft::name(x, y))) << #name; \
  EXPECT_TRUE(equal(x.name(0.5), weft::name(x, 0.5))) << #name;
  WEFT_BINARY_METHODS(X)
#undef X
#define SAME(name, ...) \
  EXPECT_TRUE(equal(x.name(__VA_ARGS__), weft::name(x __VA_OPT__(, ) __VA_ARGS__))) << #name
  const Tensor truth = gt(x, 0.5), index = make({1, 0}, {2}, DType::i64);
  SAME(logical_not);
  SAME(isnan);
  SAME(isinf);
  SAME(isfinite);
  SAME(clamp, 0.3, 0.6);
  SAME(masked_fill, truth, 2);
  SAME(sum, {1}, true);
  SAME(mean, {0});
  SAME(prod, {1}, true);
  SAME(max, {1}, true);
  SAME(min, {0});
  SAME(argmax, 1);
  SAME(argmin, 0, true);
  SAME(var, {1}, 0.0, true);
  SAME(std, {1}, 0.0, true);
  SAME(norm, {0});
  SAME(logsumexp, {1}, true);
  SAME(all, {1});
  SAME(any, {0}, true);
  SAME(softmax, 0);
  SAME(log_softmax, 1);
  SAME(argsort, 0, true);
  SAME(cumsum, 1);
  SAME(cumprod, 0);
  SAME(nonzero);
  SAME(median);
  SAME(index_add, 0, index, y);
  SAME(scatter_add, 0, index.unsqueeze(0), y.slice(0, 0, 1).slice(1, 0, 2));
  SAME(scatter, 0, index.unsqueeze(0), y.slice(0, 0, 1).slice(1, 0, 2));
  SAME(scatter, 0, index.unsqueeze(0), 1.5);
  SAME(matmul, y.t());
  SAME(index_select, 1, index);
  SAME(gather, 0, index.unsqueeze(0));
  SAME(masked_select, truth);
  SAME(repeat, {1, 2});
  SAME(flip, {1});
  SAME(roll, 1, 0);
  SAME(tril, -1);
  SAME(triu, 1);
#undef SAME
  EXPECT_TRUE(x.sort(0, true).values.equal(sort(x, 0, true).values));
  EXPECT_TRUE(x.median(1, true).values.equal(median(x, 1, true).values));
  EXPECT_TRUE(x.unique(true, true, true).inverse.equal(unique(x, true, true, true).inverse));
  EXPECT_TRUE(index.bincount({}, 5).equal(bincount(index, {}, 5)));
  EXPECT_TRUE(x.topk(1, 0, false).values.equal(topk(x, 1, 0, false).values));
  EXPECT_TRUE(x[0].dot(y[0]).equal(dot(x[0], y[0])));
  EXPECT_TRUE(x.allclose(x) && !x.allclose(y));
  EXPECT_TRUE(x.chunk(3, 1)[2].equal(chunk(x, 3, 1)[2]));
  EXPECT_TRUE(x.split(2, 1)[1].equal(split(x, 2, 1)[1]));
  EXPECT_TRUE(x.split({1, 2}, 1)[1].equal(split(x, Dims{1, 2}, 1)[1]));
}

TEST_P(ComposedTest, UndefinedOperandsAreNamed) {
  const Tensor u, t = ones({2});
  EXPECT_WEFT_ERROR(u.abs(), InvalidArgument, "[abs] x is an undefined tensor");
  EXPECT_WEFT_ERROR(u.max(0), InvalidArgument, "[max] x is an undefined tensor");
  EXPECT_WEFT_ERROR(isnan(u), InvalidArgument, "[isnan] x is an undefined tensor");
  EXPECT_WEFT_ERROR(isinf(u), InvalidArgument, "[isinf] x is an undefined tensor");
  EXPECT_WEFT_ERROR(isfinite(u), InvalidArgument, "[isfinite] x is an undefined tensor");
  EXPECT_WEFT_ERROR(equal(t, u), InvalidArgument, "[equal] b is an undefined tensor");
  EXPECT_WEFT_ERROR(isclose(t, u), InvalidArgument, "b is an undefined tensor");
  EXPECT_WEFT_ERROR(weft::std(u), InvalidArgument, "[std] x is an undefined tensor");
  EXPECT_WEFT_ERROR(logsumexp(u), InvalidArgument, "[logsumexp] x is an undefined tensor");
  EXPECT_WEFT_ERROR(dot(t, u), InvalidArgument, "[dot] b is an undefined tensor");
  EXPECT_WEFT_ERROR(masked_fill(t, u, 0), InvalidArgument, "mask is an undefined tensor");
  EXPECT_WEFT_ERROR(masked_select(u, t), InvalidArgument, "[masked_select] x is an undefined");
  EXPECT_WEFT_ERROR(repeat(u, {1}), InvalidArgument, "[repeat] x is an undefined tensor");
  EXPECT_WEFT_ERROR(flip(u, {0}), InvalidArgument, "[flip] x is an undefined tensor");
  EXPECT_WEFT_ERROR(roll(u, 1), InvalidArgument, "[roll] x is an undefined tensor");
  EXPECT_WEFT_ERROR(tril(u), InvalidArgument, "[tril] x is an undefined tensor");
  EXPECT_WEFT_ERROR(triu(u), InvalidArgument, "[triu] x is an undefined tensor");
  EXPECT_WEFT_ERROR(pad(u, {1, 1}), InvalidArgument, "[pad] x is an undefined tensor");
  EXPECT_WEFT_ERROR(full_like(u, 1), InvalidArgument, "[full_like] x is an undefined tensor");
  EXPECT_WEFT_ERROR(randn_like(u), InvalidArgument, "x is an undefined tensor");
}

TEST_P(ComposedTest, Creation) {
  EXPECT_TRUE(near_values(linspace(-1, 2, 7, DType::f64), goldens["linspace_odd"], kTolerance));
  EXPECT_TRUE(near_values(linspace(3, -3, 4, DType::f64), goldens["linspace_even"], kTolerance));
  EXPECT_TRUE(near_values(linspace(5, 9, 1, DType::f64), goldens["linspace_one"], 0));
  // PyTorch's f32 steps are rounded, weft's are not.
  EXPECT_TRUE(near_values(linspace(-1, 2, 7), goldens["linspace_odd_f32"], 0x1p-22));
  EXPECT_TRUE(near_values(linspace(3, -3, 4), goldens["linspace_even_f32"], 0x1p-22));
  EXPECT_TRUE(near_values(linspace(5, 9, 1), goldens["linspace_one_f32"], 0));
  EXPECT_EQ(values_of(linspace(0, 10, 5, DType::i64)), goldens["linspace_whole"]);
  EXPECT_EQ(linspace(0, 1, 0).shape(), Shape{0});
  EXPECT_EQ(linspace(0, 1, 3).dtype(), DType::f32);
  EXPECT_WEFT_ERROR(linspace(0, 1, -1), InvalidArgument, "[linspace] negative number of steps -1");

  const Tensor x = testing::with_gaps(ones({2, 3}, DType::bf16));
  EXPECT_TENSOR(full_like(x, 2.5), ({2, 3}), {2.5, 2.5, 2.5, 2.5, 2.5, 2.5});
  EXPECT_EQ(full_like(x, 1).dtype(), DType::bf16);
  EXPECT_EQ(randn_like(x).dtype(), DType::bf16);
  EXPECT_EQ(rand_like(x).shape(), x.shape());
  EXPECT_WEFT_ERROR(rand_like(ones({2}, DType::i64)), Dtype, "[rand_like]");
  EXPECT_WEFT_ERROR(randint(3, 3, {2}), InvalidArgument, "[randint] needs low < high, got 3 and 3");
  EXPECT_WEFT_ERROR(randint(0, 257, {2}, DType::u8), InvalidArgument,
                    "[randint] a tensor of u8 does not hold all of 0 to 256");
  EXPECT_EQ(randint(0, 256, {2, 2}, DType::u8).dtype(), DType::u8);
  EXPECT_EQ(randint(0, 2, {0}).dtype(), DType::i64);
}

TEST_P(ComposedTest, Arithmetic) {
  const Tensor a = ramp({2, 3}), row = ramp({3}), column = ramp({2, 1});
  TWO(fmod, a * 9, row + 0.3, fmod);
  EXPECT_TRUE(near_values(fmod(make({5, -5, 5, kInf, 3, kNaN, 0}, {7}, DType::f64),
                               make({3, 3, -3, 2, kInf, 1, 0}, {7}, DType::f64)),
                          goldens["fmod_special"], 0));
  for (const DType dtype : {DType::i64, DType::i32}) {
    EXPECT_TENSOR(fmod(make({7, -7, 7, -7, 6}, {5}, dtype), make({3, 3, -3, -3, -3}, {5}, dtype)),
                  ({5}), {1, -1, 1, -1, 0});
    EXPECT_TENSOR(fmod(make({7, -7}, {2}, dtype), 3), ({2}), {1, -1});
  }
  EXPECT_TENSOR(fmod(make({200, 7}, {2}, DType::u8), 3), ({2}), {2, 1});
  // The smallest integer has no absolute value among the integers.
  const Tensor least = make({-0x1p31}, {1}, DType::i32);
  for (const Tensor& three : {make({3}, {1}), scalar(3, DType::f64)}) {
    EXPECT_TENSOR(fmod(least, three), ({1}), {-2});
    EXPECT_EQ(fmod(least, three).dtype(), three.dtype());
    EXPECT_TENSOR(fmod(three, least), ({1}), {3});
  }
  EXPECT_TENSOR(fmod(make({1, 3}, {2}), make({-0x1p63}, {}, DType::i64)), ({2}), {1, 3});
  EXPECT_TENSOR(fmod(least, 1.5), ({1}), {-0.5});
  EXPECT_TENSOR(fmod(least, -0x1p31), ({1}), {0});
  EXPECT_EQ(fmod(least, -0x1p31).dtype(), DType::i32);
  EXPECT_TENSOR(fmod(make({7}, {1}, DType::i64), -0x1p63), ({1}), {7});
  EXPECT_EQ(fmod(make({7}, {1}, DType::i64), -0x1p63).dtype(), DType::i64);
  EXPECT_EQ(fmod(make({7}, {1}, DType::i64), 0x1p63).dtype(), DType::f32);
  // A zero has the sign of the first operand, as C's fmod says, also in the tail of a vector loop.
  for (const DType dtype : kFloating) {
    std::vector<double> values{-0.0, 0.0, -6, 6, -0.0, -3};
    for (int i = 0; i < 67; ++i) values.push_back(i % 2 ? -0.0 : 0.0);
    const Tensor x = make(values, {static_cast<std::int64_t>(values.size())}, dtype);
    for (const double divisor : {3.0, -3.0, kInf}) {
      const std::vector<double> got = values_of(fmod(x, divisor));
      for (std::size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i], std::fmod(values[i], divisor)) << i;
        EXPECT_EQ(std::signbit(got[i]), std::signbit(values[i])) << i << " by " << divisor;
      }
      EXPECT_EQ(values_of(fmod(x, make({divisor}, {1}, dtype))), got);
    }
    EXPECT_TRUE(std::isnan(values_of(fmod(x, 0))[0]));
    EXPECT_TRUE(std::isnan(values_of(fmod(x, kNaN))[1]));
  }
  EXPECT_WEFT_ERROR(fmod(make({7}, {1}, DType::i64), 0), InvalidArgument, "division by 0");
  check("addcmul", [](Inputs in) { return addcmul(in[0], in[1], in[2], -2); },
        {a, row + 0.5, column});
  check("addcdiv", [](Inputs in) { return addcdiv(in[0], in[1], in[2], 0.5); },
        {a, row, column + 1.5});
  EXPECT_TENSOR(make({1, 5, 9}, {3}).clamp_min(2).clamp_max(6), ({3}), {2, 5, 6});
  EXPECT_WEFT_ERROR(addcdiv(a, ones({3}, DType::i64), ones({3}, DType::i64)), Dtype, "[addcdiv]");
}

// 1/3 and the product are no numbers of bf16: rounded before the sum, they would leave nothing.
TEST_P(ComposedTest, SumsWithAProductOrQuotientInBf16RoundOnce) {
  for (const Shape& shape : {Shape{}, Shape{1}}) {
    const auto number = [&](double value) { return make({value}, shape, DType::bf16); };
    const auto row = [](double value) { return make({value, value}, {2}, DType::bf16); };
    const Tensor a = number(1 + 0x1p-7).set_requires_grad(), b = number(1 + 3 * 0x1p-7);
    const double product = -(1 + 4 * 0x1p-7), quotient = -171 * 0x1p-9;
    EXPECT_TENSOR(addcmul(row(product), a, b), ({2}), {3 * 0x1p-14, 3 * 0x1p-14});
    EXPECT_TENSOR(addcdiv(row(quotient), number(1), number(3)), ({2}),
                  {-171 * 0x1p-18, -171 * 0x1p-18});
    const Tensor y = row(product).addcmul_(a, b);
    EXPECT_TENSOR(y, ({2}), {3 * 0x1p-14, 3 * 0x1p-14});
    EXPECT_TENSOR(row(-product).addcmul_(a, b, -1), ({2}), {-3 * 0x1p-14, -3 * 0x1p-14});
    EXPECT_TENSOR(row(quotient).addcdiv_(number(1), number(3)), ({2}),
                  {-171 * 0x1p-18, -171 * 0x1p-18});
    y.sum().backward();
    EXPECT_EQ(a.grad().dtype(), DType::bf16);
    EXPECT_EQ(values_of(a.grad()), (std::vector<double>{2 * (1 + 3 * 0x1p-7)}));
  }
  const Tensor u, t = ones({2});
  EXPECT_WEFT_ERROR(t.addcmul_(t, u), InvalidArgument, "[addcmul_] b is an undefined tensor");
  EXPECT_WEFT_ERROR(t.addcdiv_(u, t), InvalidArgument, "[addcdiv_] a is an undefined tensor");
}

// By hand, after PyTorch's rule (clamp_backward in FunctionsManual.cpp): on a bound it is x that
// has the gradient, with bounds in the wrong order max, and nobody where x is below equal ones.
TEST_P(ComposedTest, BoundsMayBeTensors) {
  const auto leaf = [](const std::vector<double>& values) {
    return make(values, {static_cast<std::int64_t>(values.size())}).set_requires_grad();
  };
  const Tensor x = leaf({0, 2, 5, 1, 3, 4, 0, kNaN, 2});
  const Tensor min = leaf({1, 1, 1, 1, 1, 5, 2, 1, kNaN});
  const Tensor max = leaf({3, 3, 3, 3, 3, 2, 2, 3, 3});
  const Tensor y = clamp(x, min, max), weights = make({1, 2, 4, 8, 16, 32, 64, 128, 256}, {9});
  EXPECT_TENSOR(y.slice(0, 0, 7), ({7}), {1, 2, 3, 1, 3, 2, 2});
  EXPECT_TENSOR(isnan(y.slice(0, 7, 9)), ({2}), {1, 1});
  y.backward(weights);
  EXPECT_TENSOR(x.grad(), ({9}), {0, 2, 0, 8, 16, 0, 0, 0, 0});
  EXPECT_TENSOR(min.grad(), ({9}), {1, 0, 0, 0, 0, 0, 0, 0, 0});
  EXPECT_TENSOR(max.grad(), ({9}), {0, 0, 4, 0, 0, 32, 0, 0, 0});

  const Tensor row = leaf({1, 2, 3}), bound = scalar(2).set_requires_grad();
  const Tensor low = row.clamp_min(bound), high = row.clamp_max(bound);
  EXPECT_TENSOR(low, ({3}), {2, 2, 3});
  EXPECT_TENSOR(high, ({3}), {1, 2, 2});
  (low * make({1, 2, 4}, {3}) + high * make({8, 16, 32}, {3})).sum().backward();
  EXPECT_TENSOR(row.grad(), ({3}), {8, 18, 4});
  EXPECT_TENSOR(bound.grad(), ({}), {33});

  const Tensor written = make({1, 2, 3}, {3});
  EXPECT_TRUE(written.clamp_min_(bound).clamp_({}, scalar(2.5)).same(written));
  EXPECT_TENSOR(written, ({3}), {2, 2, 2.5});
  written.sum().backward();
  EXPECT_TENSOR(bound.grad(), ({}), {34});
  const Tensor whole = make({1, 2, 3}, {3}, DType::i64);
  EXPECT_TENSOR(whole.clamp_(make({2}, {1}, DType::i64), whole), ({3}), {1, 2, 3});
  EXPECT_EQ(clamp(whole, scalar(1.5), {}).dtype(), DType::f32);
  EXPECT_EQ(clamp(whole, ones({2, 1}, DType::i64), {}).shape(), (Shape{2, 3}));
  EXPECT_WEFT_ERROR(whole.clamp_max_(scalar(1.5)), Dtype, "[clamp_max_] max: got f32");
  EXPECT_WEFT_ERROR(whole.clamp_min_(ones({2, 1}, DType::i64)), Shape,
                    "[clamp_min_] min: got [2,1]");
  EXPECT_WEFT_ERROR(clamp(whole, Tensor(), Tensor()), InvalidArgument, "[clamp] needs a bound");
  EXPECT_WEFT_ERROR(clamp(whole, ones({2}), Tensor()), Shape, "[clamp] ");
  EXPECT_WEFT_ERROR(clamp(whole, Tensor(), ones({2})), Shape, "[clamp] ");

  const Tensor changed = row * 1.0, late = clamp(changed, bound, Tensor());
  changed.add_(1);
  EXPECT_WEFT_ERROR(late.sum().backward(), InvalidArgument, "saved for the backward of clamp (");
}

// As torch.result_type of all three: a bound without dimensions is not rounded to x's dtype first.
TEST_P(ComposedTest, BoundsAndXHaveOneDtype) {
  const Tensor x = make({0, 1, 2}, {3}).set_requires_grad();
  const Tensor max = make({3, 0.5, 3}, {3}, DType::f64).set_requires_grad();
  const Tensor y = clamp(x, scalar(0.1, DType::f64), max);
  EXPECT_EQ(y.dtype(), DType::f64);
  EXPECT_TENSOR(y, ({3}), {0.1, 0.5, 2});
  y.sum().backward();
  EXPECT_EQ(x.grad().dtype(), DType::f32);
  EXPECT_TENSOR(x.grad(), ({3}), {0, 0, 1});
  EXPECT_TENSOR(max.grad(), ({3}), {0, 1, 0});
  const Tensor whole = clamp(make({5, 6}, {2}, DType::i32), scalar(0x1p40, DType::i64),
                             make({0x1p41, 7}, {2}, DType::i64));
  EXPECT_EQ(whole.dtype(), DType::i64);
  EXPECT_TENSOR(whole, ({2}), {0x1p40, 7});
  EXPECT_EQ(clamp(make({1}, {1}), scalar(0, DType::f64), scalar(1, DType::i64)).dtype(),
            DType::f32);
}

// By hand: a filled element has the value's gradient, of which there is the sum.
TEST_P(ComposedTest, MasksAreFilledWithTensors) {
  const Tensor x = make({1, 2, 3, 4, 5, 6}, {2, 3}).set_requires_grad();
  const Tensor value = scalar(-7, DType::f64).set_requires_grad();
  const Tensor mask = make({1, 0, 1}, {3}, DType::boolean);
  const Tensor weights = make({1, 2, 3, 4, 5, 6}, {2, 3});
  const Tensor y = x.masked_fill(mask, value);
  EXPECT_EQ(y.dtype(), DType::f32);
  EXPECT_TENSOR(y, ({2, 3}), {-7, 2, -7, -7, 5, -7});
  (y * weights).sum().backward();
  EXPECT_TENSOR(x.grad(), ({2, 3}), {0, 2, 0, 0, 5, 0});
  EXPECT_TENSOR(value.grad(), ({}), {14});

  const Tensor written = zeros({2, 3});
  EXPECT_TRUE(written.masked_fill_(mask, value).same(written));
  EXPECT_TENSOR(written, ({2, 3}), {-7, 0, -7, -7, 0, -7});
  (written * weights).sum().backward();
  EXPECT_TENSOR(value.grad(), ({}), {28});
  EXPECT_TENSOR(make({1, 2, 3}, {3}, DType::i64).masked_fill_(mask, scalar(9, DType::i64)), {3},
                {9, 2, 9});
}

TEST_P(ComposedTest, Operators) {
  const Tensor x = make({1, 2, 3}, {3}), y = make({3, 2, 1}, {3});
  EXPECT_TENSOR(x == y, ({3}), {0, 1, 0});
  EXPECT_TENSOR(x != y, ({3}), {1, 0, 1});
  EXPECT_TENSOR(x < y, ({3}), {1, 0, 0});
  EXPECT_TENSOR(x <= y, ({3}), {1, 1, 0});
  EXPECT_TENSOR(x > y, ({3}), {0, 0, 1});
  EXPECT_TENSOR(x >= y, ({3}), {0, 1, 1});
  EXPECT_TENSOR((x > 1) & (x < 3), ({3}), {0, 1, 0});
  EXPECT_TENSOR((x > 2) | (x < 2), ({3}), {1, 0, 1});
  EXPECT_TENSOR((x > 1) ^ (x > 2), ({3}), {0, 1, 0});
  EXPECT_TENSOR(~(x > 1), ({3}), {1, 0, 0});
  EXPECT_WEFT_ERROR(x & (x > 1), Dtype, "[&] of masks, got f32");
  EXPECT_TENSOR(where(x > 1, x, 0.5), ({3}), {0.5, 2, 3});
  EXPECT_TENSOR(where(x > 1, 0.5, y), ({3}), {3, 0.5, 0.5});
  EXPECT_WEFT_ERROR(where(x > 1, make({1}, {1}, DType::u8), 256), InvalidArgument,
                    "cannot hold 256");
  EXPECT_TENSOR(x == 2, ({3}), {0, 1, 0});
  EXPECT_TENSOR(2 == x, ({3}), {0, 1, 0});
  EXPECT_TENSOR(x != 2, ({3}), {1, 0, 1});
  EXPECT_TENSOR(2 != x, ({3}), {1, 0, 1});
  EXPECT_TENSOR(x < 2, ({3}), {1, 0, 0});
  EXPECT_TENSOR(2 < x, ({3}), {0, 0, 1});
  EXPECT_TENSOR(x <= 2, ({3}), {1, 1, 0});
  EXPECT_TENSOR(2 <= x, ({3}), {0, 1, 1});
  EXPECT_TENSOR(x > 2, ({3}), {0, 0, 1});
  EXPECT_TENSOR(2 > x, ({3}), {1, 0, 0});
  EXPECT_TENSOR(x >= 2, ({3}), {0, 1, 1});
  EXPECT_TENSOR(2 >= x, ({3}), {1, 1, 0});
  x += 1.0, x *= 4, x -= 2, x /= 2;
  EXPECT_TENSOR(x, ({3}), {3, 5, 7});
}

TEST_P(ComposedTest, NormsAndPairs) {
  const Tensor within = make({1, 0, -2, 0, 0, 0, 3, -4, 0.5}, {3, 3}, DType::f64);
  const Tensor x = ramp({2, 3}) * 4, m = ramp({3, 4}) * 4;
  for (const auto& [name, p] : std::vector<std::pair<std::string, double>>{
           {"half", 0.5}, {"one", 1}, {"three", 3}, {"most", kInf}, {"least", -kInf}}) {
    SCOPED_TRACE(name);
    check(("p_norm_" + name).c_str(), [p = p](Inputs in) { return p_norm(in[0], p, 1); }, {within});
    check(("p_norm_" + name + "_all").c_str(), [p = p](Inputs in) { return in[0].norm(p); }, {x});
  }
  EXPECT_TRUE(near_values(within.norm(0, 1), goldens["p_norm_count"], 0));
  check("normalize_half", [](Inputs in) { return normalize(in[0], 0.5); }, {x});
  EXPECT_TENSOR(make({3, -4, 6, 8}, {2, 2}).norm(2, 1), ({2}), {5, 10});
  EXPECT_TENSOR(make({3, -4, 6, 8}, {2, 2}).norm({1}), ({2}), {5, 10});
  EXPECT_TENSOR(make({3, -4, 6, 8}, {2, 2}).norm(1, {0}, true), ({1, 2}), {9, 12});
  EXPECT_WEFT_ERROR(ones({2}, DType::i64).norm(1), Dtype, "[norm] x: got i64");
  EXPECT_WEFT_ERROR(ones({2}).norm(kNaN), InvalidArgument, "[norm] p: got nan");
  check("std_of", [](Inputs in) { return std_mean(in[0], 1).first; }, {m});
  check("mean_of", [](Inputs in) { return std_mean(in[0], 1).second; }, {m});
  check("var_of", [](Inputs in) { return var_mean(in[0], 0, 0, true).first; }, {m});
  const Tensor ties = make({3, 1, 3, -2, kNaN, 5, kNaN, 7, -1, -1, -4, -4}, {3, 4}, DType::f64);
  ONE(amax, ties, amax(0));
  ONE(amin, cat({ties.slice(0, 0, 1), ties.slice(0, 2, 3)}), amin());
  EXPECT_TRUE(near_values(make({3, 5, 7}, {3}, DType::i32).prod({}, false, DType::f64),
                          goldens["prod_dtype"], 0));
  EXPECT_EQ(make({3, 5}, {2}).sum(0, false, DType::i32).dtype(), DType::i32);
  TWO(outer, ramp({3}), ramp({2}) + 0.5, outer);
  EXPECT_WEFT_ERROR(outer(m, m), Shape, "[outer] needs two vectors");
}

// The smallest element dominates a norm of a negative order.
TEST_P(ComposedTest, NormsOfNegativeOrder) {
  for (const DType dtype : kFloating) {
    SCOPED_TRACE(to_string(dtype));
    const Tensor x = make({1, 0x1p66, 0x1p-66, -1, 0, 3, kInf, 2, -kInf, kInf}, {5, 2}, dtype);
    for (const double p : {-1.0, -2.0, -3.5}) {
      EXPECT_TENSOR(x.norm(p, 1), ({5}), {1, 0x1p-66, 0, 2, kInf});
    }
  }
  EXPECT_TRUE(std::isnan(make({1, kNaN}, {2}).norm(-2).item<double>()));
  EXPECT_EQ(zeros({0, 2}).norm(-1, 1).shape(), Shape{0});
  EXPECT_WEFT_ERROR(zeros({0, 2}).norm(-1), Shape, "no elements to choose from");
  EXPECT_WEFT_ERROR(zeros({2, 0}).norm(-0.5, 1), Shape, "dimension 1 of [2,0] is empty");
  const Tensor x = make({1, 1e20, 0, 3}, {2, 2}).set_requires_grad();
  x.norm(-2, 1).sum().backward();
  EXPECT_TENSOR(x.grad(), ({2, 2}), {1, 0, 0, 0});
}

TEST_P(ComposedTest, ViewsAndArrangements) {
  const Tensor m = ramp({3, 4}) * 4;
  check("unbind", [](Inputs in) { return in[0].unbind(1)[2]; }, {m});
  EXPECT_EQ(zeros({2, 3}).unbind(-1).size(), 3u);
  EXPECT_TRUE(unbind(zeros({0, 3})).empty());
  EXPECT_WEFT_ERROR(unbind(zeros({})), Shape, "[unbind]");
  for (const std::string indexing : {"ij", "xy"}) {
    for (std::size_t i = 0; i < 3; ++i) {
      const auto grid = [=](Inputs in) {
        std::vector<Tensor> axes{ramp({2}), ramp({3}), ramp({2})};
        axes[i] = in[0];
        return meshgrid(axes, indexing)[i];
      };
      check(("meshgrid_" + indexing + "_" + std::to_string(i)).c_str(), grid,
            {ramp({i == 1 ? 3 : 2})});
    }
  }
  EXPECT_EQ(meshgrid({ones({2})}, "xy")[0].shape(), Shape{2});
  EXPECT_WEFT_ERROR(meshgrid({ones({2})}, "yx"), InvalidArgument, "indexing: got 'yx'");
  EXPECT_WEFT_ERROR(meshgrid({m}), Shape, "[meshgrid] an axis: got [3,4]");
  for (const int k : {-2, 0, 1}) {
    const std::string name = k < 0 ? "m2" : std::to_string(k);
    check(("diag_" + name).c_str(), [k](Inputs in) { return in[0].diag(k); }, {m});
    check(("diag_of_" + name).c_str(), [k](Inputs in) { return in[0].diag(k); }, {ramp({3})});
    check(("diagonal_" + name).c_str(), [k](Inputs in) { return in[0].diagonal(k, 2, 0); },
          {ramp({3, 2, 4})});
  }
  EXPECT_TRUE(m.diagonal().storage() == m.storage());
  EXPECT_FALSE(m.diag().storage() == m.storage());
  EXPECT_EQ(m.diagonal(kMin).shape(), Shape{0});
  EXPECT_EQ(m.diagonal(kMax).shape(), Shape{0});
  EXPECT_WEFT_ERROR(m.diagonal(0, 1, -1), Shape, "[diagonal] dim1 and dim2 are both dimension 1");
  EXPECT_WEFT_ERROR(diag(zeros({2, 2, 2})), Shape, "[diag] needs a vector or a matrix");
  EXPECT_WEFT_ERROR(diag(ones({2}), kMin), Shape, "[diag]");
  ONE(repeat_interleave, ramp({2, 3}), repeat_interleave(2));
  ONE(repeat_interleave_dim, ramp({2, 3}), repeat_interleave(3, 0));
  const Tensor each = make({2, 0, 3}, {3}, DType::i64);
  ONE(repeat_interleave_each, ramp({2, 3}), repeat_interleave(each, 1));
  EXPECT_TENSOR(make({1, 2}, {2}).repeat_interleave(make({2}, {1}, DType::i32)), ({4}),
                {1, 1, 2, 2});
  EXPECT_WEFT_ERROR(repeat_interleave(m, -1), InvalidArgument, "repeats: got -1");
  EXPECT_WEFT_ERROR(repeat_interleave(m, each, 1), Shape, "repeats: got [3]");
  EXPECT_WEFT_ERROR(repeat_interleave(m, m, 1), Dtype, "repeats: got f64");
  EXPECT_WEFT_ERROR(repeat_interleave(m, kMax, 1), Shape, "[repeat_interleave]");
  const auto huge = [](const std::vector<std::int64_t>& counts) {
    return repeat_interleave(ones({3, 2}), from_vector(counts, {2}), 1);
  };
  const std::int64_t half = kMax / 2 + 1;  // 2^62
  EXPECT_WEFT_ERROR(huge({half, half}), Shape, "[repeat_interleave] 46");
  EXPECT_WEFT_ERROR(huge({half, 1}), Shape, "[repeat_interleave]");
  EXPECT_WEFT_ERROR(huge({half, -1}), InvalidArgument, "repeats: got -1");
  EXPECT_WEFT_ERROR(repeat_interleave(ones({2}), from_vector<std::int64_t>({half, 1}, {2})),
                    OutOfMemory, "is out of memory");
  ONE(unfold, ramp({2, 8}), unfold(1, 3, 2));
  EXPECT_WEFT_ERROR(m.unfold(1, 5, 1), Shape, "[unfold] size: got 5, expected 0 to 4");
  EXPECT_WEFT_ERROR(m.unfold(1, 2, 0), InvalidArgument, "[unfold] step: got 0");
  EXPECT_TRUE(m.view({2, 6}).storage() == m.storage());
  EXPECT_WEFT_ERROR(m.t().view({12}), Shape, "[view] a tensor [4,3] with strides [1,4]");
  EXPECT_WEFT_ERROR(m.view({5}), Shape, "[view] got [5]");
  EXPECT_EQ(ones({3}).t().shape(), Shape{3});
  EXPECT_EQ(ones({}).t().shape(), Shape{});
}

TEST_P(ComposedTest, Einsum) {
  const auto sums = [](const char* name, const char* equation, const std::vector<Tensor>& inputs) {
    check(name, [=](Inputs in) { return einsum(equation, in); }, inputs);
  };
  sums("einsum_attention", "bqhd,bkhd->bhqk", {ramp({2, 3, 2, 4}), ramp({2, 5, 2, 4}) + 0.3});
  sums("einsum_bilinear", "bi, oij, bj -> bo", {ramp({2, 3}), ramp({4, 3, 2}), ramp({2, 2})});
  sums("einsum_trace", "...ii->...", {ramp({2, 3, 3})});
  sums("einsum_implicit", "ba,ac", {ramp({2, 3}), ramp({3, 4})});
  const Tensor x = ones({2, 3}), y = ones({3, 2});
  EXPECT_TENSOR(einsum("ij,jk->ik", x, y), ({2, 2}), {3, 3, 3, 3});
  EXPECT_TENSOR(einsum("ij->", {x}), ({}), {6});
  for (const DType dtype : {DType::u8, DType::i32, DType::i64}) {
    const Tensor row_sums = einsum("ij->i", full({2, 3}, 100, dtype));  // more than u8 holds
    EXPECT_EQ(row_sums.dtype(), DType::i64);
    EXPECT_TENSOR(row_sums, ({2}), {300, 300});
    EXPECT_EQ(einsum("ij->ji", ones({2, 3}, dtype)).dtype(), dtype);
    const Tensor factors = einsum("ij,k->ik", full({1, 3}, 100, dtype), full({2}, 2, dtype));
    EXPECT_EQ(factors.dtype(), DType::i64);
    EXPECT_TENSOR(factors, ({1, 2}), {600, 600});
    EXPECT_TENSOR(
        einsum("k,ki,ij->", full({2}, 3, dtype), ones({2, 2}, dtype), full({2, 3}, 100, dtype)),
        ({}), {3600});
  }
  EXPECT_TENSOR(einsum("ij,jk", ones({2, 3}, DType::i32), ones({3, 1}, DType::i32)), ({2, 1}),
                {3, 3});
  EXPECT_WEFT_ERROR(einsum("ij,jk->ik", {x}), InvalidArgument, "has 2 operands, got 1");
  EXPECT_WEFT_ERROR(einsum("ijk->i", x), Shape, "operand 0: 'ijk' names 3 dimensions of [2,3]");
  EXPECT_WEFT_ERROR(einsum("ij->k", x), InvalidArgument,
                    "has 'k' in the result, and in no operand");
  EXPECT_WEFT_ERROR(einsum("ij->ii", x), InvalidArgument, "has 'i' twice in the result");
  EXPECT_WEFT_ERROR(einsum("i1->i", x), InvalidArgument, "has '1', expected letters");
  EXPECT_WEFT_ERROR(einsum("......->i", x), Shape, "");
  EXPECT_WEFT_ERROR(einsum("ii->i", x), Shape, "'i' is twice in 'ii', with lengths 2 and 3");
  EXPECT_WEFT_ERROR(einsum("ij,ij->i", x, y), Shape, "'i' has lengths 2 and 3");
  EXPECT_WEFT_ERROR(einsum("ij,jk", x, y.to(DType::f64)), Dtype, "");
}

// The CPU's numbers are the same as PyTorch's.
TEST(ComposedTest, AnEmptyIndexTakesNothingFromASource) {
  const Tensor x = ones({2, 2}).set_requires_grad(), source = ones({2, 3}).set_requires_grad();
  for (const auto put : {scatter_add, static_cast<decltype(&scatter_add)>(scatter)}) {
    const Tensor empty = ones({2, 0}).set_requires_grad();
    for (const Tensor& from : {source, empty}) {
      put(x, 1, zeros({2, 0}, DType::i64), from).sum().backward();
    }
    EXPECT_FALSE(source.grad().defined());
    EXPECT_TRUE(empty.grad().defined());  // as in PyTorch
  }
  scatter(x, 1, zeros({2, 0}, DType::i64), 3).sum().backward();
  EXPECT_EQ(values_of(x.grad()), std::vector<double>(4, 5));
}

TEST(ComposedRandomTest, OfASeed) {
  Generator generator(3);
  EXPECT_EQ(values_of(randint(0, 10, {5}, DType::i64, &generator)), goldens["randint_4"]);
  EXPECT_EQ(values_of(randint(-5, (1 << 28) - 6, {5}, DType::i64, &generator)),
            goldens["randint_28"]);
  EXPECT_EQ(values_of(randint(-5, (1 << 28) - 5, {5}, DType::i64, &generator)),
            goldens["randint_29"]);
  EXPECT_EQ(values_of(randint(-(1ll << 40), 1ll << 50, {5}, DType::i64, &generator)),
            goldens["randint_51"]);
  const auto normal = randn_like(ones({2, 3}), &generator).to_vector<float>();
  const std::vector<double> want = goldens["randn_like"];
  ASSERT_EQ(normal.size(), want.size());
  for (std::size_t i = 0; i < normal.size(); ++i) EXPECT_NEAR(normal[i], want[i], 2e-6) << i;
  EXPECT_EQ(values_of(rand_like(ones({2, 3}), &generator)), goldens["rand_like"]);
}

TEST(ComposedRandomTest, Normal) {
  Generator generator(4);
  const auto expect = [](const char* name, const Tensor& x) {
    EXPECT_TRUE(near_values(x, goldens[name], 8e-6)) << name;  // as rng.h says, times std
  };
  const Tensor mean = ramp({20}).to(DType::f32), std = mean + 2;
  expect("normal", normal(1.5, 2, {20}, {}, &generator));
  expect("normal_both", normal(mean, std, &generator));
  expect("normal_mean", normal(mean, 2, &generator));
  expect("normal_std", normal(1.5, std, &generator));
  EXPECT_EQ(normal(ones({2, 1}), ones({3})).shape(), (Shape{2, 3}));
  EXPECT_WEFT_ERROR(normal(0, -1, {2}), InvalidArgument, "[normal] needs std >= 0");
  EXPECT_WEFT_ERROR(normal(0, make({1, -1}, {2})), InvalidArgument, "[normal] std: an element");
  EXPECT_WEFT_ERROR(normal(ones({2}, DType::i64)), Dtype, "[normal]");
}

// As in PyTorch, whose derivatives.yaml has zeros for both.
TEST(ComposedRandomTest, NormalHasGradientsOfZero) {
  const Tensor mean = ones({2, 1}).set_requires_grad();
  const Tensor std = ones({3}, DType::f64).set_requires_grad();
  for (const Tensor& y : {normal(mean, std), normal(mean, 2), normal(1, std)}) {
    ASSERT_TRUE(y.requires_grad());
    y.sum().backward();
  }
  EXPECT_TENSOR(mean.grad(), ({2, 1}), {0, 0});
  EXPECT_TENSOR(std.grad(), ({3}), {0, 0, 0});
  EXPECT_EQ(std.grad().dtype(), DType::f64);
  EXPECT_FALSE(normal(ones({2}), 1).requires_grad());
}

}  // namespace
}  // namespace weft
