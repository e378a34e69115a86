// Every element-wise operation of the lists, over dtypes, layouts and broadcasts. The tests of the
// kernels and elementwise_golden_test have the values, every_op_test and gradcheck the gradients.
#include <algorithm>
#include <cmath>
#include <limits>

#include "weft/tensor/elementwise.h"
#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/device_param.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::kAllDTypes;
using testing::kFloating;
using testing::layouts;
using testing::make;
using testing::reversed_layout;
using testing::some;
using testing::values_of;
using testing::with_gaps;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class ElementwiseTest : public testing::DeviceParam {};
WEFT_FOR_EACH_DEVICE(ElementwiseTest);

const Shape kShapes[] = {{}, {1}, {7}, {0}, {2, 3, 4}, {1, 5, 1}, {0, 3}, {33, 17}};

struct UnaryCase {
  const char* name;
  Tensor (*run)(const Tensor&);
  UnaryOp op;
  bool closed;
  double low, high;
};

const UnaryCase kUnary[] = {
#define X(value, fn, functor, closed, low, high) {#fn, raw::fn, UnaryOp::value, closed, low, high},
    WEFT_UNARY_OPS(X)
#undef X
};

TEST_P(ElementwiseTest, UnaryOfEveryDtypeShapeAndLayout) {
  for (const UnaryCase& c : kUnary) {
    for (DType dtype : kAllDTypes) {
      const bool rounds = c.op == UnaryOp::floor || c.op == UnaryOp::ceil ||
                          c.op == UnaryOp::round || c.op == UnaryOp::trunc;
      if (dtype == DType::boolean && (rounds || c.op == UnaryOp::neg)) continue;  // refused
      for (const Shape& shape : kShapes) {
        const double low = is_floating(dtype) ? c.low : (c.low > 0 ? 1 : -3);
        const Tensor base = some(shape, dtype, low, std::max(c.high, 3.0));
        for (const Tensor& x : layouts(base)) {
          SCOPED_TRACE(std::string(c.name) + " " + to_string(dtype) + " " + to_string(shape));
          const Tensor y = c.run(x);
          DType want = is_floating(dtype) || c.closed ? dtype : DType::f32;
          if (c.op == UnaryOp::square && dtype == DType::boolean) want = DType::i64;
          EXPECT_EQ(y.dtype(), want);
          EXPECT_NEAR_TENSOR(y, shape, values_of(c.run(raw::to(base, want))));
        }
      }
    }
  }
}

TEST_P(ElementwiseTest, UnaryKeepsADenseLayout) {
  const Tensor x = raw::contiguous(some({2, 3, 4, 5}), MemoryFormat::nhwc);
  EXPECT_EQ(raw::exp(x).strides(), x.strides());
  const Tensor turned = reversed_layout(some({2, 3, 4}));
  EXPECT_EQ(raw::relu(turned).strides(), turned.strides());
  EXPECT_TRUE(raw::relu(with_gaps(x)).is_contiguous());
}

TEST_P(ElementwiseTest, UnaryBackwardWritesOverAGradientThatNobodyElseHolds) {
  const Tensor y = make({0, 2, 0, 3}, {2, 2});
  Tensor alone = make({5, 6, 7, 8}, {2, 2});
  const void* memory = alone.raw_data();
  const Tensor over = raw::unary_backward(UnaryOp::relu, std::move(alone), y);
  EXPECT_EQ(over.raw_data(), memory);
  EXPECT_TENSOR(over, ({2, 2}), ({0, 6, 0, 8}));

  Tensor shared = make({5, 6, 7, 8}, {2, 2});
  const Tensor held = shared;
  EXPECT_TENSOR(raw::unary_backward(UnaryOp::relu, std::move(shared), y), ({2, 2}), ({0, 6, 0, 8}));
  EXPECT_TENSOR(held, ({2, 2}), ({5, 6, 7, 8}));

  const Tensor base = make({5, 6, 7, 8}, {4});
  EXPECT_TENSOR(raw::unary_backward(UnaryOp::relu, raw::reshape(base, {2, 2}), y), ({2, 2}),
                ({0, 6, 0, 8}));
  EXPECT_TENSOR(base, ({4}), ({5, 6, 7, 8}));

  // An expanded value, and memory with gaps: the result has neither of these layouts.
  EXPECT_TENSOR(raw::unary_backward(UnaryOp::relu, raw::expand(make({1}, {1, 1}), {2, 2}), y),
                ({2, 2}), ({0, 1, 0, 1}));
  EXPECT_TENSOR(
      raw::unary_backward(UnaryOp::relu,
                          raw::slice(make({5, 0, 6, 0, 7, 0, 8, 0}, {2, 4}), 1, 0, 4, 2), y),
      ({2, 2}), ({0, 6, 0, 8}));
}

// Whatever the memory formats of gradient and saved tensor are, the result has the latter's.
TEST_P(ElementwiseTest, UnaryBackwardInMemoryFormats) {
  for (const Shape& shape : {Shape{2, 3, 4, 5}, Shape{2, 35, 9, 11}, Shape{2, 1, 4, 5},
                             Shape{3, 4, 1, 1}, Shape{0, 3, 2, 2}}) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
      const Tensor y = raw::to(raw::relu(raw::sub(rand(shape), 0.5)), dtype);
      const Tensor g = raw::to(raw::sub(rand(shape), 0.5), dtype);
      const std::vector<double> want = values_of(raw::where(raw::gt(y, 0.0), g, zeros_like(g)));
      for (const MemoryFormat of_y : {MemoryFormat::nchw, MemoryFormat::nhwc}) {
        for (const MemoryFormat of_g : {MemoryFormat::nchw, MemoryFormat::nhwc}) {
          const Tensor saved = raw::contiguous(y, of_y), grad = raw::contiguous(g, of_g);
          const Tensor got = raw::unary_backward(UnaryOp::relu, grad, saved);
          EXPECT_EQ(values_of(got), want) << to_string(shape) << to_string(dtype);
          EXPECT_EQ(got.strides(), saved.strides());
          EXPECT_EQ(values_of(grad), values_of(g));
        }
      }
    }
  }
}

TEST_P(ElementwiseTest, UnaryBackwardErrors) {
  const Tensor g = ones({2, 3});
  EXPECT_WEFT_ERROR(raw::unary_backward(UnaryOp::exp, g, ones({3})), Shape,
                    "[exp] gradient: got [2,3], saved tensor has [3]");
  EXPECT_WEFT_ERROR(raw::unary_backward(UnaryOp::exp, g, ones({2, 3}, DType::f64)), Dtype,
                    "[exp] dtype: gradient is f32, saved tensor is f64");
  EXPECT_WEFT_ERROR(raw::unary_backward(UnaryOp::neg, ones({2}, DType::i64), {}), Dtype,
                    "needs a floating dtype");
}

// --- Two operands --------------------------------------------------------------------------------

struct ShapePair {
  Shape a, b;
};
const ShapePair kPairs[] = {{{2, 3}, {2, 3}}, {{2, 3}, {3}},    {{2, 1}, {1, 3}},
                            {{}, {2, 3}},     {{2, 3}, {}},     {{}, {}},
                            {{1}, {1}},       {{0, 3}, {1, 3}}, {{4, 1, 5}, {3, 1}},
                            {{1, 1}, {7}},    {{33, 17}, {17}}, {{2, 3, 4}, {2, 3, 4}}};

struct BinaryCase {
  const char* name;
  Tensor (*run)(const Tensor&, const Tensor&);
  bool defined_for_bool, closed;
  double low;
};

constexpr bool is_arithmetic(BinaryOp op) {
  return op == BinaryOp::sub || op == BinaryOp::pow || op == BinaryOp::remainder ||
         op == BinaryOp::floor_divide;
}

const BinaryCase kBinary[] = {
#define X(value, fn, functor, closed, low, ...) \
  {#fn, raw::fn, !is_arithmetic(BinaryOp::value), closed, low},
    WEFT_BINARY_OPS(X)
#undef X
#define X(value, fn, expression) {#fn, raw::fn, true, true, 0},
        WEFT_COMPARE_OPS(X)
#undef X
};

// Of operands that lie in any way, as of dense ones of the result's shape; few different values, so
// that some are equal.
TEST_P(ElementwiseTest, BinaryOfEveryDtypeBroadcastAndLayout) {
  for (const BinaryCase& c : kBinary) {
    for (DType dtype : kAllDTypes) {
      if (dtype == DType::boolean && !c.defined_for_bool) continue;
      for (const ShapePair& shapes : kPairs) {
        SCOPED_TRACE(std::string(c.name) + " " + to_string(dtype) + " " + to_string(shapes.a) +
                     " " + to_string(shapes.b));
        const double low = is_floating(dtype) ? c.low : (c.low > 0 ? 1 : -3);
        const Shape shape = broadcast_shapes(shapes.a, shapes.b, "test");
        const auto values = [&](const Shape& of, std::uint64_t seed) {
          return raw::to(
              raw::mul(raw::round(raw::mul(some(of, DType::f64, low, 3, seed), 4)), 0.25), dtype);
        };
        const Tensor base_a = values(shapes.a, 1), base_b = values(shapes.b, 2);
        const auto whole = [&](const Tensor& x) { return raw::contiguous(raw::expand(x, shape)); };
        const Tensor want = c.run(whole(base_a), whole(base_b));
        const bool integers = !is_floating(dtype) && !c.closed;
        for (const Tensor& a : layouts(base_a)) {
          for (const Tensor& b : layouts(base_b)) {
            const Tensor y = c.run(a, b);
            EXPECT_EQ(y.dtype(), integers ? DType::f32 : want.dtype());
            EXPECT_NEAR_TENSOR(y, shape, values_of(want));
          }
        }
      }
    }
  }
}

TEST_P(ElementwiseTest, BinaryPromotes) {
  for (DType a : kAllDTypes) {
    for (DType b : kAllDTypes) {
      const Tensor y = raw::add(make({1, 0}, {2}, a), make({1, 1}, {2}, b));
      EXPECT_EQ(y.dtype(), promote(a, b));
      const bool truth = a == DType::boolean && b == DType::boolean;
      EXPECT_TENSOR(y, ({2}), {truth ? 1.0 : 2.0, 1});
      EXPECT_EQ(raw::div(ones({1}, a), ones({1}, b)).dtype(),
                is_floating(promote(a, b)) ? promote(a, b) : DType::f32);
    }
  }
}

TEST_P(ElementwiseTest, BinaryKeepsADenseLayout) {
  const Tensor x = raw::contiguous(some({2, 3, 4, 5}), MemoryFormat::nhwc);
  EXPECT_EQ(raw::add(x, x).strides(), x.strides());
  EXPECT_EQ(raw::add(x, ones({3, 1, 1})).strides(), x.strides());
  EXPECT_EQ(raw::mul(ones({}), x).strides(), x.strides());
  EXPECT_TRUE(raw::add(raw::contiguous(x), x).is_contiguous()) << "the first operand decides";
}

TEST_P(ElementwiseTest, BinaryBackwardGivesTheOperandsDtype) {
  const Tensor a = ones({2}, DType::bf16), b = full({2}, 3, DType::f32), g = ones({2});
  EXPECT_EQ(raw::binary_backward(BinaryOp::mul, false, g, a, b).dtype(), DType::bf16);
  EXPECT_TENSOR(raw::binary_backward(BinaryOp::mul, false, g, a, b), ({2}), {3, 3});
  EXPECT_EQ(raw::binary_backward(BinaryOp::add, false, g, a, b).dtype(), DType::bf16);
  EXPECT_TENSOR(raw::binary_backward(BinaryOp::sub, true, g, Tensor(), b), ({2}), {-1, -1});
  EXPECT_WEFT_ERROR(raw::binary_backward(BinaryOp::mul, true, g, Tensor(), b), InvalidArgument,
                    "[mul] a is an undefined tensor");
  EXPECT_WEFT_ERROR(raw::binary_backward(BinaryOp::mul, true, ones({3}), a, b), Shape,
                    "[mul] gradient: got [3], the operation gave [2]");
}

TEST_P(ElementwiseTest, NaNWinsInExtremes) {
  const Tensor a = make({1, kNaN, 2, kNaN}, {4}), b = make({kNaN, 1, 3, kNaN}, {4});
  EXPECT_TRUE(testing::near_values(raw::maximum(a, b), {kNaN, kNaN, 3, kNaN}, 0));
  EXPECT_TRUE(testing::near_values(raw::minimum(a, b), {kNaN, kNaN, 2, kNaN}, 0));
  EXPECT_TRUE(testing::near_values(raw::relu(a), {1, kNaN, 2, kNaN}, 0));
  EXPECT_TRUE(testing::near_values(raw::clamp(a, 0, 1), {1, kNaN, 1, kNaN}, 0));
}

TEST_P(ElementwiseTest, BinaryErrors) {
  EXPECT_WEFT_ERROR(raw::add(ones({2, 3}), ones({4})), Shape,
                    "[add] shapes [2,3] and [4] do not broadcast");
  const std::int64_t huge = std::int64_t{1} << 40;
  const Tensor wide = raw::expand(ones({1, 1}), {1, huge});
  EXPECT_WEFT_ERROR(raw::add(wide, raw::transpose(wide, 0, 1)), Shape, "does not fit in 64 bits");
  EXPECT_WEFT_ERROR(raw::sub(ones({1}, DType::boolean), ones({1}, DType::boolean)), Dtype,
                    "[sub] not defined for bool");
  EXPECT_WEFT_ERROR(raw::neg(ones({1}, DType::boolean)), Dtype, "[neg] not defined for bool");
  EXPECT_TENSOR(raw::sub(ones({1}, DType::boolean), ones({1})), ({1}), {0});
}

TEST_P(ElementwiseTest, SigmoidDoesNotVanishEarly) {
  // Down to the smallest denormals; 1 / (1 + exp(-x)) overflows before.
  for (const auto& [dtype, from, to] : {std::tuple{DType::f32, -104.0, -80.0},
                                        {DType::bf16, -92.0, -80.0},
                                        {DType::f64, -745.0, -700.0}}) {
    const auto n = static_cast<std::int64_t>((to - from) * 4);
    const Tensor x = raw::add(raw::div(arange(0, static_cast<double>(n), 1, dtype), 4), from);
    const std::vector<double> xs = values_of(x), got = values_of(raw::sigmoid(x));
    // Two units in the last place; for denormals this is the smallest denormal.
    const double smallest = dtype == DType::f64   ? 0x1p-1074
                            : dtype == DType::f32 ? 0x1p-149
                                                  : 0x1p-133;
    const double relative = dtype == DType::f64 ? 0x1p-52 : dtype == DType::f32 ? 0x1p-23 : 0x1p-8;
    for (std::size_t i = 0; i < xs.size(); ++i) {
      const double want = std::exp(xs[i]);  // divided by 1 + exp(x), which is 1
      EXPECT_LE(std::abs(got[i] - want), 2 * std::max(smallest, relative * want))
          << to_string(dtype) << " sigmoid(" << xs[i] << ")";
    }
  }
}

TEST_P(ElementwiseTest, DivisionsGradientDoesNotOverflowOnTheWay) {
  for (const auto& [dtype, tiny] : {std::pair{DType::f32, 1e-25}, {DType::f64, 1e-200}}) {
    // Long enough for the vector loops and their rests.
    const Tensor a = full({37}, tiny, dtype), g = ones({37}, dtype);
    const std::vector<double> want(37, -1 / tiny);
    EXPECT_NEAR_TENSOR(raw::binary_backward(BinaryOp::div, true, g, a, a), Shape{37}, want);
    EXPECT_NEAR_TENSOR(raw::unary_backward(UnaryOp::rdiv_scalar, g, a, {.a = tiny}), Shape{37},
                       want);
  }
}

// Infinite, NaN or a number, as the formula says, also with broadcast operands.
TEST_P(ElementwiseTest, DivisionsGradientNearZero) {
  const auto check = [&]<class T>(DType dtype) {
    for (const double a : {0.0, 1.0, -1.0, 1e-30, 1e20, 1e38, kInf}) {
      for (const double b : {0.0, -0.0, 5e-324, 1e-200, 1e-45, 1e-38, -1e-38, 1e-30, 1e-20, 1e30}) {
        SCOPED_TRACE(::testing::Message() << to_string(dtype) << ' ' << a << " / " << b);
        const Tensor above = full({3, 1, 5}, a, dtype), below = full({3, 5}, b, dtype);
        const Tensor g = ones({3, 3, 5}, dtype);
        const T quotient = static_cast<T>(a) / static_cast<T>(b);
        const T of_a = T(1) / static_cast<T>(b), of_b = -(quotient / static_cast<T>(b));
        const auto thrice = [](T x) {
          return std::vector<double>(15, static_cast<T>(3 * static_cast<double>(x)));
        };
        EXPECT_TRUE(testing::near_values(
            raw::binary_backward(BinaryOp::div, false, g, above, below), thrice(of_a), 0));
        EXPECT_TRUE(testing::near_values(raw::binary_backward(BinaryOp::div, true, g, above, below),
                                         thrice(of_b), 0));
      }
    }
  };
  check.operator()<float>(DType::f32);
  check.operator()<double>(DType::f64);
}

TEST_P(ElementwiseTest, PowsGradientDoesNotOverflowOnTheWay) {
  for (const auto& [dtype, largest, smallest] :
       {std::tuple{DType::f32, double{std::numeric_limits<float>::max()},
                   double{std::numeric_limits<float>::denorm_min()}},
        {DType::f64, std::numeric_limits<double>::max(),
         std::numeric_limits<double>::denorm_min()}}) {
    const auto to_base = [dtype = dtype](double g, double base, double exponent) {
      const Tensor a = full({37}, base, dtype), b = full({37}, exponent, dtype);
      const Tensor grad = full({37}, g, dtype);
      const Tensor tensors = raw::binary_backward(BinaryOp::pow, false, grad, a, b);
      const Tensor scalar = raw::unary_backward(UnaryOp::pow_scalar, grad, a, {.a = exponent});
      EXPECT_EQ(values_of(tensors), values_of(scalar));
      return values_of(tensors);
    };
    EXPECT_EQ(to_base(10, 2, -largest), std::vector<double>(37, 0));       // 10 * -largest
    EXPECT_EQ(to_base(1e-5, 0, smallest), std::vector<double>(37, kInf));  // 1e-5 * smallest
    const Tensor a = full({37}, 1 + 0x1p-20, dtype), g = full({37}, largest, dtype);
    const Tensor b = full({37}, 0x1p20, dtype);
    for (double x : values_of(raw::binary_backward(BinaryOp::pow, true, g, a, b))) {
      EXPECT_TRUE(std::isfinite(x)) << x;
    }
  }
}

// --- A tensor and a number -----------------------------------------------------------------------

TEST_P(ElementwiseTest, ScalarsInEveryDtype) {
  for (DType dtype : kAllDTypes) {
    const Tensor x = make({0, 1}, {2}, dtype);
    const DType whole = dtype == DType::boolean ? DType::i64 : dtype;
    const DType real = is_floating(dtype) ? dtype : DType::f32;
    EXPECT_TENSOR(raw::add(x, 2), ({2}), {2, 3});
    EXPECT_EQ(raw::add(x, 2).dtype(), whole);
    EXPECT_TENSOR(raw::add(x, 0.5), ({2}), {0.5, 1.5});
    EXPECT_EQ(raw::add(x, 0.5).dtype(), real);
    EXPECT_TENSOR(raw::mul(x, 3), ({2}), {0, 3});
    EXPECT_TENSOR(raw::mul(x, 0.5), ({2}), {0, 0.5});
    EXPECT_TENSOR(raw::sub(5, x), ({2}), {5, 4});
    EXPECT_TENSOR(raw::sub(raw::add(x, 5), 2), ({2}), {3, 4});
    EXPECT_TENSOR(raw::div(x, 4), ({2}), {0, 0.25});
    EXPECT_EQ(raw::div(x, 4).dtype(), real);
    EXPECT_TENSOR(raw::div(6, raw::add(x, 1)), ({2}), {6, 3});
    EXPECT_TENSOR(raw::pow(raw::add(x, 2), 3), ({2}), {8, 27});
    EXPECT_EQ(raw::pow(x, 3).dtype(), whole);
    EXPECT_TENSOR(raw::maximum(x, 1), ({2}), {1, 1});
    EXPECT_TENSOR(raw::minimum(x, 0.5), ({2}), {0, 0.5});
    EXPECT_EQ(raw::minimum(x, 0.5).dtype(), real);
  }
  EXPECT_EQ(raw::add(ones({1}, DType::i32), kInf).dtype(), DType::f32);
  EXPECT_EQ(raw::mul(ones({1}, DType::bf16), 1e300).dtype(), DType::bf16);
  for (const double number : {0x1p63, -0x1p63}) {
    const DType want = number < 0 ? DType::i64 : DType::f32;
    EXPECT_EQ(raw::add(ones({1}, DType::i64), number).dtype(), want) << number;
    EXPECT_EQ(raw::sub(ones({1}, DType::i64), number).dtype(), want) << number;
  }
  EXPECT_TENSOR(raw::sub(make({3}, {1}, DType::i32), -0x1p63), ({1}), {3});
  EXPECT_TENSOR(raw::sub(make({3}, {1}), -0x1p63), ({1}), {0x1p63});
}

TEST_P(ElementwiseTest, DivisionByANumberIsDivision) {
  const Tensor x = some({1000}, DType::f32, 0.1, 9);
  for (double b : {3.0, 4.0, 10.0, -0.125, 7e-30}) {
    const Tensor y = raw::div(x, b);
    EXPECT_EQ(values_of(y), values_of(raw::div(x, full({}, b)))) << b;
  }
  EXPECT_TRUE(testing::near_values(raw::div(make({1, 0, -1}, {3}), 0), {kInf, kNaN, -kInf}, 0));
}

TEST_P(ElementwiseTest, Clamp) {
  for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::i64, DType::i32}) {
    const Tensor x = make({-5, 0, 5}, {3}, dtype);
    EXPECT_TENSOR(raw::clamp(x, -1, 2), ({3}), {-1, 0, 2});
    EXPECT_TENSOR(raw::clamp(x, -kInf, 2), ({3}), {-5, 0, 2});
    EXPECT_TENSOR(raw::clamp(x, -1, kInf), ({3}), {-1, 0, 5});
    EXPECT_TENSOR(raw::clamp(x, -kInf, kInf), ({3}), {-5, 0, 5});
    EXPECT_EQ(raw::clamp(x, -kInf, 2).dtype(), dtype);
    EXPECT_TENSOR(raw::clamp(x, -0.5, 0.5), ({3}), {-0.5, 0, 0.5});
  }
}

TEST_P(ElementwiseTest, ClampBoundsBeyondTheDtype) {
  const Tensor x = make({0, 5, 200}, {3}, DType::u8);
  EXPECT_TENSOR(raw::clamp(x, -7, 100), ({3}), {0, 5, 100});
  EXPECT_TENSOR(raw::clamp(x, 1, 300), ({3}), {1, 5, 200});
  EXPECT_EQ(raw::clamp(x, 1, 300).dtype(), DType::u8);
  EXPECT_TENSOR(raw::clamp(make({-3, 3}, {2}, DType::i32), -1, 3e9), ({2}), {-1, 3});
  EXPECT_WEFT_ERROR(raw::clamp(x, 1, -7), InvalidArgument,
                    "[clamp] no u8 lies within the bounds 1 and -7");
  EXPECT_WEFT_ERROR(raw::clamp(x, 300, 400), InvalidArgument, "no u8 lies within");
}

// Sanitizers detect an overflow that is not intended.
TEST_P(ElementwiseTest, IntegersWrapAround) {
  constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const Tensor x = from_vector<std::int64_t>({least, most}, {2});
  const auto expect = [](const Tensor& y, const std::vector<std::int64_t>& want) {
    EXPECT_EQ(y.to_vector<std::int64_t>(), want);
  };
  expect(raw::neg(x), {least, -most});
  expect(raw::abs(x), {least, most});
  expect(raw::square(x), {0, 1});
  expect(raw::add(x, 1), {least + 1, least});
  expect(raw::sub(1, x), {least + 1, 1 - most});
  expect(raw::sub(x, -0x1p63), {0, -1});
  expect(raw::mul(x, 2), {0, -2});
  expect(raw::add(x, x), {0, -2});
  expect(raw::sub(raw::neg(x), x), {0, 2});
  expect(raw::mul(x, x), {0, 1});
}

TEST_P(ElementwiseTest, NumbersThatNoIntegerIs) {
  const Tensor x = make({1, 2}, {2}, DType::i64);
  for (const double number : {0x1p63, -0x1.1p63, kInf, kNaN}) {
    EXPECT_WEFT_ERROR(raw::unary(UnaryOp::add_scalar, x, {.a = number}), InvalidArgument,
                      "expected one that i64 holds");
    EXPECT_WEFT_ERROR(raw::unary_(UnaryOp::clamp, x, {.b = number}), InvalidArgument,
                      "expected one that i64 holds");
  }
}

TEST_P(ElementwiseTest, NumbersThatTheDtypeDoesNotHold) {
  const Tensor bytes = make({1, 200}, {2}, DType::u8), x = make({1, 2}, {2});
  EXPECT_WEFT_ERROR(raw::maximum(bytes, 300), InvalidArgument,
                    "[maximum] a tensor of u8 cannot hold 300");
  EXPECT_WEFT_ERROR(raw::minimum(bytes, -1), InvalidArgument, "[minimum] a tensor of u8");
  EXPECT_WEFT_ERROR(raw::remainder(bytes, 256), InvalidArgument, "[remainder] a tensor of u8");
  EXPECT_WEFT_ERROR(raw::floor_divide(bytes, -1), InvalidArgument, "[floor_divide] a tensor of u8");
  EXPECT_WEFT_ERROR(raw::maximum(x, 1e39), InvalidArgument, "[maximum] a tensor of f32");
  EXPECT_WEFT_ERROR(raw::clamp(x, 0, 1e39), InvalidArgument, "[clamp] a tensor of f32 cannot hold");
  EXPECT_WEFT_ERROR(raw::clamp(x, -1e39), InvalidArgument, "[clamp] a tensor of f32 cannot hold");
  // As in PyTorch: a sum is modulo 2^bits, and a number that is an operand may be infinite.
  EXPECT_TENSOR(raw::add(bytes, 300), ({2}), {45, 244});
  EXPECT_TENSOR(raw::sub(bytes, 300), ({2}), {213, 156});
  EXPECT_TENSOR(raw::mul(x, 1e39), ({2}), {kInf, kInf});
  EXPECT_TENSOR(raw::remainder(x, 1e39), ({2}), {1, 2});
  EXPECT_TENSOR(raw::div(x, 1e39), ({2}), {0, 0});
  EXPECT_TENSOR(raw::lt(x, 1e39), ({2}), {1, 1});
  EXPECT_TENSOR(raw::maximum(x, -kInf), ({2}), {1, 2});
}

// A NaN bound makes all results NaN; if the lower bound is above the upper one, the upper one
// counts.
TEST_P(ElementwiseTest, ClampBoundsThatCrossOrAreNone) {
  for (DType dtype : kFloating) {
    const Tensor x = make({1, 3, kNaN}, {3}, dtype);
    EXPECT_TRUE(testing::near_values(raw::clamp(x, kNaN, 2), {kNaN, kNaN, kNaN}, 0));
    EXPECT_TRUE(testing::near_values(raw::clamp(x, 2, kNaN), {kNaN, kNaN, kNaN}, 0));
    EXPECT_EQ(raw::clamp(x, kNaN, 2).dtype(), dtype);
    EXPECT_TRUE(testing::near_values(raw::clamp(x, 4, 2), {2, 2, kNaN}, 0));
  }
  EXPECT_TENSOR(raw::clamp(make({1, 5}, {2}, DType::i64), 4, 2), ({2}), {2, 2});
  const Tensor none = raw::clamp(make({1, 5}, {2}, DType::i64), kNaN, 2);
  EXPECT_TRUE(testing::near_values(none, {kNaN, kNaN}, 0));
  EXPECT_EQ(none.dtype(), DType::f32);
  EXPECT_EQ(values_of(raw::unary_backward(UnaryOp::clamp, ones({3}), make({1, 3, 5}, {3}),
                                          {.a = 4, .b = 2})),
            (std::vector<double>{0, 0, 0}));
}

TEST_P(ElementwiseTest, WholeNumbersAreRoundedAlready) {
  // More than f32 or f64 can represent.
  const double two_53 = 0x1p53;
  const Tensor x = raw::add(make({two_53, -two_53, 0}, {3}, DType::i64), 1);
  for (const Tensor& y : {raw::floor(x), raw::ceil(x), raw::round(x)}) {
    EXPECT_EQ(y.dtype(), DType::i64);
    EXPECT_FALSE(y.same(x));
    EXPECT_EQ(raw::sub(y, two_53).to_vector<std::int64_t>(),
              raw::sub(x, two_53).to_vector<std::int64_t>());
  }
  EXPECT_EQ(raw::floor(ones({2}, DType::u8)).dtype(), DType::u8);
  EXPECT_WEFT_ERROR(raw::floor(ones({2}, DType::boolean)), Dtype, "[floor] not defined for bool");
}

TEST_P(ElementwiseTest, PowersOfIntegersAreIntegers) {
  const Tensor x = make({3, -2, 0, 1}, {4}, DType::i64);
  EXPECT_EQ(raw::pow(x, 2).dtype(), DType::i64);
  EXPECT_TENSOR(raw::pow(x, 3), ({4}), {27, -8, 0, 1});
  EXPECT_TENSOR(raw::pow(x, 0), ({4}), {1, 1, 1, 1});
  EXPECT_TENSOR(raw::pow(make({3, 2}, {2}, DType::u8), 6), ({2}), {217, 64});  // modulo 256
  // Beyond the integers that f64 represents exactly.
  EXPECT_EQ(raw::pow(make({3}, {1}, DType::i64), 39).item<std::int64_t>(), 4052555153018976267);
  EXPECT_EQ(raw::pow(make({7}, {1}, DType::i32), 62).item<std::int32_t>(), 767209169);
  // With a tensor of exponents a reciprocal is rounded towards 0.
  const Tensor exponents = make({2, 3, 0, -1, -2, -3, -1}, {7}, DType::i32);
  const Tensor bases = make({3, -2, 5, 1, -1, -1, 2}, {7}, DType::i32);
  EXPECT_TENSOR(raw::pow(bases, exponents), ({7}), {9, -8, 1, 1, 1, -1, 0});
  EXPECT_EQ(raw::pow(bases, exponents).dtype(), DType::i32);
  EXPECT_TENSOR(raw::pow(make({0, 0}, {2}, DType::i64), make({-1, 0}, {2}, DType::i64)), ({2}),
                {0, 1});
  EXPECT_EQ(raw::pow(x, 0.5).dtype(), DType::f32);
  EXPECT_EQ(raw::pow(ones({2}, DType::boolean), 2).dtype(), DType::i64);
  EXPECT_EQ(raw::square(ones({2}, DType::boolean)).dtype(), DType::i64);
  EXPECT_WEFT_ERROR(raw::pow(x, -1), InvalidArgument,
                    "[pow] a tensor of i64 to the power -1 is no tensor of i64; convert it with "
                    "to(dtype)");
  EXPECT_WEFT_ERROR(raw::pow(ones({2}, DType::boolean), ones({2}, DType::boolean)), Dtype,
                    "[pow] not defined for bool");
}

// torch.result_type(torch.ones(1, dtype=row), torch.tensor(1, dtype=column)).
TEST_P(ElementwiseTest, TensorsWithoutDimensionsDoNotPromoteTheirKind) {
  using enum DType;
  const DType dtypes[] = {f32, f64, bf16, i64, i32, u8, boolean};
  const DType want[7][7] = {
      {f32, f32, f32, f32, f32, f32, f32},        {f64, f64, f64, f64, f64, f64, f64},
      {bf16, bf16, bf16, bf16, bf16, bf16, bf16}, {f32, f64, bf16, i64, i64, i64, i64},
      {f32, f64, bf16, i32, i32, i32, i32},       {f32, f64, bf16, u8, u8, u8, u8},
      {f32, f64, bf16, i64, i32, u8, boolean}};
  for (int i = 0; i < 7; ++i) {
    for (int j = 0; j < 7; ++j) {
      const Tensor x = ones({2}, dtypes[i]), one = ones({}, dtypes[j]);
      EXPECT_EQ(raw::mul(x, one).dtype(), want[i][j])
          << to_string(dtypes[i]) << to_string(dtypes[j]);
      EXPECT_EQ(raw::add(one, x).dtype(), want[i][j])
          << to_string(dtypes[i]) << to_string(dtypes[j]);
      EXPECT_EQ(raw::maximum(x, one).dtype(), want[i][j]);
      EXPECT_EQ(raw::where(ones({2}, boolean), x, one).dtype(), want[i][j]);
      EXPECT_EQ(raw::div(x, one).dtype(), is_floating(want[i][j]) ? want[i][j] : f32);
      EXPECT_EQ(raw::mul(raw::reshape(x, {2, 1}), ones({1}, dtypes[j])).dtype(),
                promote(dtypes[i], dtypes[j]));
      EXPECT_EQ(raw::mul(ones({}, dtypes[i]), one).dtype(), promote(dtypes[i], dtypes[j]));
    }
  }
  // The computation also has this dtype: 2^24 + 1 in f32 is 2^24.
  EXPECT_TENSOR(raw::add(make({16777216}, {1}), scalar(1, f64)), ({1}), {16777216});
  EXPECT_TENSOR(raw::lt(make({16777216}, {1}), scalar(16777217, f64)), ({1}), {0});
  // In place: the operand does not make the kind of the written tensor too low.
  const Tensor y = make({1, 2}, {2}, i32);
  raw::binary_(BinaryOp::add, y, scalar(3, i64));
  EXPECT_TENSOR(y, ({2}), {4, 5});
}

// --- Comparison, where ---------------------------------------------------------------------------

TEST_P(ElementwiseTest, CompareWithANumberMeansWhatItSays) {
  const Tensor bytes = make({0, 255}, {2}, DType::u8);
  EXPECT_TENSOR(raw::eq(bytes, -1), ({2}), {0, 0});
  EXPECT_TENSOR(raw::gt(bytes, -1), ({2}), {1, 1});
  EXPECT_TENSOR(raw::lt(bytes, 300), ({2}), {1, 1});
  EXPECT_TENSOR(raw::ge(make({1, 2}, {2}, DType::i64), 1.5), ({2}), {0, 1});
  EXPECT_TENSOR(raw::lt(make({1, 2}, {2}, DType::i64), kInf), ({2}), {1, 1});
  EXPECT_TENSOR(raw::eq(make({0.1, 0.2}, {2}), 0.1), ({2}), {1, 0});
  EXPECT_TENSOR(raw::eq(make({0, 1}, {2}, DType::boolean), 1), ({2}), {0, 1});
  EXPECT_TENSOR(raw::eq(make({kNaN}, {1}), kNaN), ({1}), {0});
  EXPECT_TENSOR(raw::ne(make({kNaN}, {1}), kNaN), ({1}), {1});
  EXPECT_TENSOR(raw::logical_not(make({0, 2, -1}, {3})), ({3}), {1, 0, 0});
  EXPECT_TENSOR(raw::lt(make({1}, {1}, DType::i32), ones({1}, DType::f64)), ({1}), {0});
}

TEST_P(ElementwiseTest, Where) {
  for (DType dtype : kAllDTypes) {
    const Tensor c = make({1, 0, 1}, {3}, DType::boolean);
    const Tensor a = make({1, 0, 1, 0, 1, 1}, {2, 3}, dtype), b = make({0, 1}, {2, 1}, dtype);
    for (const Tensor& x : layouts(a)) {
      EXPECT_TENSOR(raw::where(c, x, b), ({2, 3}), {1, 0, 1, 0, 1, 1});
    }
    EXPECT_EQ(raw::where(c, a, b).dtype(), dtype);
  }
  EXPECT_EQ(raw::where(ones({1}, DType::boolean), ones({1}, DType::i32), ones({1})).dtype(),
            DType::f32);
  EXPECT_EQ(raw::where(ones({0}, DType::boolean), ones({0}), ones({1})).shape(), Shape{0});
  EXPECT_WEFT_ERROR(raw::where(ones({1}), ones({1}), ones({1})), Dtype,
                    "[where] condition: got f32, expected bool");
  EXPECT_WEFT_ERROR(raw::where(ones({2}, DType::boolean), ones({3}), ones({1})), Shape, "[where]");
}

TEST_P(ElementwiseTest, SizesAroundTheVectorWidthAndTheGrain) {
  for (std::int64_t n : {15, 16, 17, 63, 64, 65, 1000, 4097, 100000}) {
    const Tensor a = some({n}, DType::f32, -3, 3, 1), b = some({n}, DType::f32, -3, 3, 2);
    std::vector<double> want = values_of(a);
    const std::vector<double> bs = values_of(b);
    for (std::size_t i = 0; i < want.size(); ++i) want[i] = float(want[i]) * float(bs[i]);
    EXPECT_EQ(values_of(raw::mul(a, b)), want) << n;
  }
}

// Threads cut rows: a part of one must give what it gives in the whole.
TEST(ElementwiseTeams, ASingleOperandGivesTheSameBitsForEveryTeamSize) {
  const Tensor a = some({4099, 67}, DType::f32, 0.1, 3, 1),
               b = some({4099, 1}, DType::f32, -3, 3, 2);
  Tensor (*const operations[])(const Tensor&, const Tensor&) = {raw::pow, raw::div};
  for (const auto run : operations) {
    std::vector<double> first;
    for (const int team : {1, 2, 3, 7}) {
      const Scoped threads(&ThreadState::num_threads, team);
      const std::vector<double> y = values_of(run(a, b));
      if (team == 1) first = y;
      EXPECT_EQ(y, first) << team << " threads";
    }
  }
}

}  // namespace
}  // namespace weft
