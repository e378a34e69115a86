// Functions of f32 against f64, over floats of every exponent, and those of f64 against long
// double.
#include <algorithm>
#include <bit>
#include <cmath>

#include "weft/kernels/functors.h"
#include "weft/tests/kernels/targets.h"

namespace weft::testing {
namespace {

double sigmoid(double x) {
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}

/// Distance between floats around v.
double ulp(double v) {
  int exponent = 0;
  std::frexp(v, &exponent);
  return v == 0 ? 0x1p-149 : std::ldexp(1.0, std::max(exponent - 24, -149));
}

class VectorMath : public TargetTest {
 protected:
  /// unit: of the error, from x and f(x).
  void check(
      UnaryOp op, double (*f)(double), UnaryParams params = {},
      double (*unit)(double, double) = [](double, double y) { return ulp(y); }) {
    // Every 8191st of the 2^32 floats: 524,352 of them, all exponents, both signs, NaNs too.
    std::vector<double> x;
    for (std::uint64_t bits = 0; bits < (1ull << 32); bits += 8191) {
      x.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
    }
    const Buffer in(device(), DType::f32, {std::ssize(x)}, x);
    Buffer out(device(), DType::f32, {std::ssize(x)});
    kernels().elementwise.unary(stream, op, params, in.view(), out.view());
    const std::vector<double> got = out.values();
    // NVIDIA guarantees at most 2 ulp between, for example, tanhf and the nearest float (CUDA C++
    // Programming Guide, "Mathematical Functions").
    const double most = device().is_cuda() ? 2.5 : 2;
    int shown = 0;
    for (std::size_t i = 0; i < x.size() && shown < 5; ++i) {
      const double want = f(x[i]);
      const auto nearest = static_cast<float>(want);
      if (got[i] == nearest || (std::isnan(got[i]) && std::isnan(want))) continue;
      const double error = std::abs(got[i] - want) / unit(x[i], want);
      if (std::isfinite(nearest) && error <= most) continue;
      ADD_FAILURE() << "at " << x[i] << ": got " << got[i] << ", expected " << want << ", " << error
                    << " units apart";
      ++shown;
    }
  }
};
WEFT_ON_EVERY_TARGET(VectorMath);

TEST_P(VectorMath, Exp) {
  check(UnaryOp::exp, [](double x) { return std::exp(x); });
}
TEST_P(VectorMath, Log) {
  check(UnaryOp::log, [](double x) { return std::log(x); });
}
TEST_P(VectorMath, Tanh) {
  check(UnaryOp::tanh, [](double x) { return std::tanh(x); });
}
TEST_P(VectorMath, Erf) {
  check(UnaryOp::erf, [](double x) { return std::erf(x); });
}
TEST_P(VectorMath, Sin) {
  check(UnaryOp::sin, [](double x) { return std::sin(x); });
}
TEST_P(VectorMath, Cos) {
  check(UnaryOp::cos, [](double x) { return std::cos(x); });
}
TEST_P(VectorMath, Softplus) {
  const auto f = [](double x) {
    return x > 20 ? x : std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
  };
  check(UnaryOp::softplus, f, {1, 20});
}
// Like every formula with 1 + erf, accurate to the last places of max(1, |x|) only.
TEST_P(VectorMath, Gelu) {
  check(
      UnaryOp::gelu, [](double x) { return x * (0.5 * std::erfc(-x * std::sqrt(0.5))); }, {},
      [](double x, double) { return 0x1p-24 * std::max(1.0, std::abs(x)); });
}
TEST_P(VectorMath, Sigmoid) { check(UnaryOp::sigmoid, sigmoid); }

// The functors for CUDA and for types without a vector form.
TEST(Functors, SigmoidIsExactToTheLastPlaces) {
  for (std::uint64_t bits = 0; bits < (1ull << 32); bits += 8191) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (std::isnan(x)) continue;
    const double want = sigmoid(x), got = functor::Sigmoid{}.fwd(x);
    // libm's exp is exact within one ulp; the division and the correction round once each.
    ASSERT_LE(std::abs(got - want), 2 * ulp(want)) << "at " << x << ": got " << got;
  }
  for (const double x : {-745.0, -720.0, -709.5, -30.0, 0.0, 30.0, 800.0}) {
    const double want = x < -40 ? std::exp(x) : sigmoid(x), got = functor::Sigmoid{}.fwd(x);
    EXPECT_LE(std::abs(got - want), std::max(2 * 0x1p-52 * want, 0x1p-1074)) << "at " << x;
  }
  // log_sigmoid's gradient is the sigmoid of -x.
  EXPECT_NEAR((functor::LogSigmoid{}.bwd(1.0f, 90.0f)), std::exp(-90.0), 0x1p-148);
}

TEST_P(VectorMath, LogSigmoid) {
  check(UnaryOp::log_sigmoid,
        [](double x) { return std::min(x, 0.0) - std::log1p(std::exp(-std::abs(x))); });
}

TEST_P(VectorMath, OddFunctionsKeepTheSignOfZero) {
  for (const UnaryOp op : {UnaryOp::tanh, UnaryOp::sin}) {
    const Buffer in(device(), DType::f32, {2}, std::vector<double>{-0.0, 0.0});
    Buffer out(device(), DType::f32, {2});
    kernels().elementwise.unary(stream, op, {}, in.view(), out.view());
    EXPECT_TRUE(std::signbit(out.values()[0]));
    EXPECT_FALSE(std::signbit(out.values()[1]));
  }
}

// An angle too large for the vector code does not change its neighbours' results.
TEST_P(VectorMath, SinDoesNotDependOnNeighbours) {
  std::vector<double> x = values_for(DType::f32, 2000, -100, 100, 5);
  const auto sines = [&] {
    const Buffer in(device(), DType::f32, {2000}, x);
    Buffer out(device(), DType::f32, {2000});
    kernels().elementwise.unary(stream, UnaryOp::sin, {}, in.view(), out.view());
    return out.values();
  };
  const std::vector<double> before = sines();
  for (std::size_t i = 0; i < x.size(); i += 97) x[i] = 0x1.8p100;
  const std::vector<double> after = sines();
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (i % 97 == 0) continue;
    EXPECT_EQ(after[i], before[i]) << i;
  }
}

TEST_P(VectorMath, ExpOfF64) {
  std::vector<double> x{-kInf, kInf, kNaN, -0.0, 709.78, 709.79, -708.4, -740, -745.2};
  for (int i = 0; i < 100000; ++i) x.push_back(-746 + i * 0.014561);
  for (int i = 0; i < 100000; ++i) x.push_back(-1 + i * 0.00002);
  const Buffer in(device(), DType::f64, {std::ssize(x)}, x);
  Buffer out(device(), DType::f64, {std::ssize(x)});
  kernels().elementwise.unary(stream, UnaryOp::exp, {}, in.view(), out.view());
  const std::vector<double> got = out.values();
  for (std::size_t i = 0; i < x.size(); ++i) {
    const long double want = std::exp(static_cast<long double>(x[i]));
    const auto nearest = static_cast<double>(want);
    if (got[i] == nearest || (std::isnan(got[i]) && std::isnan(nearest))) continue;
    int exponent = 0;
    std::frexp(nearest, &exponent);
    const double unit = std::ldexp(1.0, std::max(exponent - 53, -1074));
    ASSERT_LE(std::abs(static_cast<double>(got[i] - want)), 1.25 * unit) << "at " << x[i];
  }
}

TEST_P(VectorMath, Pow) {
  std::vector<double> x, y;
  const std::vector<double> special{0,
                                    -0.0,
                                    1,
                                    -1,
                                    2,
                                    -2,
                                    0.5,
                                    -0.5,
                                    3,
                                    -3,
                                    kInf,
                                    -kInf,
                                    kNaN,
                                    0.1f,
                                    2.5,
                                    0x1p-149,
                                    -0x1p-149,
                                    0x1.fffffep127,
                                    -0x1p127,
                                    0x1p24,
                                    0x1.fffffep23,
                                    -0x1.fffffep23,
                                    0x1.000002p0,
                                    0x1.fffffep-1,
                                    4194303.5};
  for (const double a : special) {
    for (const double b : special) {
      x.push_back(a);
      y.push_back(b);
    }
  }
  const std::vector<double> bases = values_for(DType::f32, 50000, -3, 20, 1);
  const std::vector<double> exponents = values_for(DType::f32, 50000, -30, 30, 2);
  for (std::size_t i = 0; i < bases.size(); ++i) {
    x.push_back(i % 4 == 0 ? bases[i] : std::abs(bases[i]));
    y.push_back(i % 4 == 0 ? std::floor(exponents[i]) : exponents[i]);
  }
  const Buffer a(device(), DType::f32, {std::ssize(x)}, x),
      b(device(), DType::f32, {std::ssize(x)}, y);
  Buffer out(device(), DType::f32, {std::ssize(x)});
  kernels().elementwise.binary(stream, BinaryOp::pow, a.view(), b.view(), out.view());
  const std::vector<double> got = out.values();
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double want = std::pow(x[i], y[i]);
    const auto nearest = static_cast<float>(want);
    if (std::isnan(got[i]) && std::isnan(want)) continue;
    EXPECT_EQ(std::signbit(got[i]), std::signbit(want)) << x[i] << " to the power " << y[i];
    if (got[i] == nearest) continue;
    // CUDA's powf guarantees 4 ulp.
    ASSERT_LE(std::abs(got[i] - want), (device().is_cuda() ? 4 : 0.75) * ulp(want))
        << x[i] << " to the power " << y[i] << ": got " << got[i] << ", expected " << want;
  }
}

// PyTorch 2.11's results, whose short formulas for these exponents differ from C's pow.
TEST_P(VectorMath, PowOfFrequentExponents) {
  const std::vector<double> x{-kInf, -4, -0.0, 0, 0.25, 4, kInf, kNaN};
  const auto check = [&](double a, const std::vector<double>& want) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
      const Buffer in(device(), dtype, {8}, x);
      Buffer out(device(), dtype, {8});
      kernels().elementwise.unary(stream, UnaryOp::pow_scalar, {a, 0}, in.view(), out.view());
      SCOPED_TRACE(a);
      expect_equal(out.values(), want);
      // a x^(a - 1)
      if (a == 0 || a == 2) {
        const Buffer g(device(), dtype, {8}, std::vector<double>(8, 1));
        kernels().elementwise.unary_backward(stream, UnaryOp::pow_scalar, {a, 0}, g.view(),
                                             in.view(), out.view());
        if (a == 2)
          expect_equal(out.values(), {-kInf, -8, 0, 0, 0.5, 8, kInf, kNaN});
        else
          expect_equal(out.values(), std::vector<double>(8, 0));
      }
    }
  };
  check(2, {kInf, 16, 0, 0, 0.0625, 16, kInf, kNaN});
  check(3, {-kInf, -64, 0, 0, 0.015625, 64, kInf, kNaN});
  check(1, x);
  check(0, std::vector<double>(8, 1));
  check(0.5, {kNaN, kNaN, 0, 0, 0.5, 2, kInf, kNaN});
  check(-0.5, {kNaN, kNaN, -kInf, kInf, 2, 0.5, 0, kNaN});
  check(-1, {0, -0.25, -kInf, kInf, 4, 0.25, 0, kNaN});
  check(-2, {0, 0.0625, kInf, kInf, 16, 0.0625, 0, kNaN});
}

}  // namespace
}  // namespace weft::testing
