// exp, log, sigmoid, tanh and log_sigmoid of f32 against f64, over floats of every exponent.
#include <bit>

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
  void check(UnaryOp op, double (*f)(double)) {
    // Every 8191st of the 2^32 floats: 524,352 of them, all exponents, both signs, NaNs too.
    std::vector<double> x;
    for (std::uint64_t bits = 0; bits < (1ull << 32); bits += 8191) {
      x.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
    }
    const Buffer in(device(), DType::f32, {std::ssize(x)}, x);
    Buffer out(device(), DType::f32, {std::ssize(x)});
    kernels().elementwise.unary(stream, op, {}, in.view(), out.view());
    const std::vector<double> got = out.values();
    // NVIDIA states at most 2 ulp between tanhf, say, and the nearest float (CUDA C++ Programming
    // Guide, "Mathematical Functions").
    const double most = device().is_cuda() ? 2.5 : 2;
    int shown = 0;
    for (std::size_t i = 0; i < x.size() && shown < 5; ++i) {
      const double want = f(x[i]);
      const auto nearest = static_cast<float>(want);
      if (got[i] == nearest || (std::isnan(got[i]) && std::isnan(want))) continue;
      const double error = std::abs(got[i] - want) / ulp(want);
      if (std::isfinite(nearest) && error <= most) continue;
      ADD_FAILURE() << "at " << x[i] << ": got " << got[i] << ", expected " << want << ", " << error
                    << " ulp apart";
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
TEST_P(VectorMath, Sigmoid) { check(UnaryOp::sigmoid, sigmoid); }

// What CUDA and the types without a vector form compute.
TEST(Functors, SigmoidIsExactToTheLastPlaces) {
  for (std::uint64_t bits = 0; bits < (1ull << 32); bits += 8191) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (std::isnan(x)) continue;
    const double want = sigmoid(x), got = functor::Sigmoid{}.fwd(x);
    // libm's exp is within one unit, the division and the correction round once each.
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

TEST_P(VectorMath, TanhKeepsTheSignOfZero) {
  const Buffer in(device(), DType::f32, {2}, std::vector<double>{-0.0, 0.0});
  Buffer out(device(), DType::f32, {2});
  kernels().elementwise.unary(stream, UnaryOp::tanh, {}, in.view(), out.view());
  EXPECT_TRUE(std::signbit(out.values()[0]));
  EXPECT_FALSE(std::signbit(out.values()[1]));
}

}  // namespace
}  // namespace weft::testing
