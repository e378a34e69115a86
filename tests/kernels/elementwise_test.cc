// The arithmetic of kernels/elementwise_list.h against the functors in f64. The functors themselves
// are checked against literal values here and by gradcheck in tests/autograd.
#include <algorithm>
#include <cmath>

#include "weft/kernels/functors.h"
#include "weft/tests/kernels/targets.h"

namespace weft::testing {
namespace {

// f32, f64: a functor has at most six roundings (those of tanh and sigmoid count as two ulp, or
// four) of intermediate values that stay within a few times max(1, |result|) in the test domains.
// bf16 is computed in f32 and rounded once more.
auto bound_of(DType dtype) {
  return [storage = dtype == DType::bf16 ? 0x1.02p-8 : 0.0,
          compute = compute_roundoff(dtype)](double want) {
    return storage * std::abs(want) + 12 * compute * std::max(1.0, std::abs(want));
  };
}

// An integer result, converted to its type.
double stored(DType dtype, std::int64_t v) {
  switch (dtype) {
    case DType::boolean: return v != 0;
    case DType::u8: return static_cast<double>(static_cast<std::uint8_t>(v));
    case DType::i32: return static_cast<double>(static_cast<std::int32_t>(v));
    default: return static_cast<double>(v);
  }
}

class Elementwise : public TargetTest {
 protected:
  // An operand with values of its own. An element that strides repeat keeps its last value, so the
  // values that the kernel reads are read back.
  struct Input {
    Buffer buffer;
    std::vector<double> values;
    Input(Device device, DType dtype, const Layout& l, int operand, double low, double high)
        : buffer(device, dtype, l.shape, l.strides[operand]) {
      buffer.set(values_for(dtype, numel(l.shape), low, high, 7u + operand));
      values = buffer.values();
    }
  };

  template <class F>
  void check_unary(const char* name, UnaryOp op, bool integers, double low, double high) {
    const UnaryParams params{0.75, 2.5};
    const F f{params};
    for (const DType dtype : kFloating) {
      for (const Layout& l : layouts()) {
        SCOPED_TRACE(std::string(name) + " " + to_string(dtype) + " " + l.name);
        const Input x(device(), dtype, l, 1, low, high);
        std::vector<double> want;
        for (const double v : x.values) want.push_back(f.fwd(v));

        Buffer y(device(), dtype, l.shape, l.strides[0]);
        kernels().elementwise.unary(stream, op, params, x.buffer.view(), y.view());
        expect_close(y.values(), want, bound_of(dtype));

        Buffer inplace(device(), dtype, l.shape, l.strides[0], x.values);
        kernels().elementwise.unary(stream, op, params, inplace.view(), inplace.view());
        expect_close(inplace.values(), want, bound_of(dtype));

        // Backward reads x, y or neither; every functor's formula is defined if x itself is
        // "saved".
        const Input g(device(), dtype, l, 2, -2, 2);
        want.clear();
        for (std::size_t i = 0; i < x.values.size(); ++i) {
          want.push_back(f.bwd(g.values[i], x.values[i]));
        }
        Buffer grad(device(), dtype, l.shape, l.strides[0]);
        const View saved = F::saves == Saves::nothing ? View() : x.buffer.view();
        kernels().elementwise.unary_backward(stream, op, params, g.buffer.view(), saved,
                                             grad.view());
        expect_close(grad.values(), want, bound_of(dtype));
      }
    }
    for (const DType dtype : kIntegers) {
      for (const Layout& l : layouts()) {
        SCOPED_TRACE(std::string(name) + " " + to_string(dtype) + " " + l.name);
        const Input x(device(), dtype, l, 1, -4, 5);
        Buffer y(device(), dtype, l.shape, l.strides[0]);
        if (!integers) {
          try {
            kernels().elementwise.unary(stream, op, params, x.buffer.view(), y.view());
            ADD_FAILURE() << "should not exist for integers";
          } catch (const Error& e) {
            EXPECT_EQ(e.code(), ErrorCode::Unsupported);
            EXPECT_NE(std::string(e.what()).find(to_string(dtype)), std::string::npos) << e.what();
          }
          break;
        }
        std::vector<double> want;
        for (const double v : x.values) {
          want.push_back(stored(dtype, f.fwd(static_cast<std::int64_t>(v))));
        }
        kernels().elementwise.unary(stream, op, params, x.buffer.view(), y.view());
        expect_equal(y.values(), want);
      }
    }
  }

  template <class F>
  void check_binary(const char* name, BinaryOp op, bool integers, double low, double high) {
    for (const DType dtype : kFloating) {
      for (const Layout& l : layouts()) {
        SCOPED_TRACE(std::string(name) + " " + to_string(dtype) + " " + l.name);
        const Input a(device(), dtype, l, 1, low, high), b(device(), dtype, l, 2, low, high);
        std::vector<double> want;
        for (std::size_t i = 0; i < a.values.size(); ++i) {
          want.push_back(F{}.fwd(a.values[i], b.values[i]));
        }
        Buffer y(device(), dtype, l.shape, l.strides[0]);
        kernels().elementwise.binary(stream, op, a.buffer.view(), b.buffer.view(), y.view());
        expect_close(y.values(), want, bound_of(dtype));

        Buffer inplace(device(), dtype, l.shape, l.strides[0], a.values);
        kernels().elementwise.binary(stream, op, inplace.view(), b.buffer.view(), inplace.view());
        expect_close(inplace.values(), want, bound_of(dtype));

        const Input g(device(), dtype, l, 3, -2, 2);
        for (const bool of_b : {false, true}) {
          want.clear();
          for (std::size_t i = 0; i < a.values.size(); ++i) {
            want.push_back(of_b ? F{}.bwd_b(g.values[i], a.values[i], b.values[i])
                                : F{}.bwd_a(g.values[i], a.values[i], b.values[i]));
          }
          Buffer grad(device(), dtype, l.shape, l.strides[0]);
          const View none;
          kernels().elementwise.binary_backward(
              stream, op, of_b, g.buffer.view(), F::passes_grad ? none : a.buffer.view(),
              F::passes_grad ? none : b.buffer.view(), grad.view());
          expect_close(grad.values(), want, bound_of(dtype));
        }
      }
    }
    for (const DType dtype : kIntegers) {
      for (const Layout& l : layouts()) {
        SCOPED_TRACE(std::string(name) + " " + to_string(dtype) + " " + l.name);
        const Input a(device(), dtype, l, 1, -4, 5), b(device(), dtype, l, 2, -4, 5);
        Buffer y(device(), dtype, l.shape, l.strides[0]);
        const auto run = [&] {
          kernels().elementwise.binary(stream, op, a.buffer.view(), b.buffer.view(), y.view());
        };
        if (!integers) {
          EXPECT_THROW(run(), Error);
          break;
        }
        std::vector<double> want;
        for (std::size_t i = 0; i < a.values.size(); ++i) {
          want.push_back(stored(dtype, F{}.fwd(static_cast<std::int64_t>(a.values[i]),
                                               static_cast<std::int64_t>(b.values[i]))));
        }
        run();
        expect_equal(y.values(), want);
      }
    }
  }

  std::vector<double> unary_of(UnaryOp op, const std::vector<double>& x, UnaryParams params = {}) {
    const Buffer in(device(), DType::f32, {std::ssize(x)}, x);
    Buffer out(device(), DType::f32, {std::ssize(x)});
    kernels().elementwise.unary(stream, op, params, in.view(), out.view());
    return out.values();
  }
};
WEFT_ON_EVERY_TARGET(Elementwise);

TEST_P(Elementwise, EveryUnaryOperation){
#define X(value, name, F, integers, low, high) \
  check_unary<functor::F>(#value, UnaryOp::value, integers, low, high);
    WEFT_UNARY_OPS(X)
#undef X
}

TEST_P(Elementwise, EveryScalarOperation){
#define X(value, F, integers) check_unary<functor::F>(#value, UnaryOp::value, integers, 0.3, 3);
    WEFT_SCALAR_OPS(X)
#undef X
}

TEST_P(Elementwise, EveryBinaryOperation){
#define X(value, name, F, integers, low, high) \
  check_binary<functor::F>(#value, BinaryOp::value, integers, low, high);
    WEFT_BINARY_OPS(X)
#undef X
}

TEST_P(Elementwise, LiteralValues) {
  const std::vector<double> x{-kInf, -2.5, -0.5, 0, 0.5, 1.5, 2.5, kInf, kNaN};
  const auto check = [&](UnaryOp op, const std::vector<double>& want, UnaryParams p = {}) {
    expect_equal(unary_of(op, x, p), want);
  };
  check(UnaryOp::neg, {kInf, 2.5, 0.5, 0, -0.5, -1.5, -2.5, -kInf, kNaN});
  check(UnaryOp::abs, {kInf, 2.5, 0.5, 0, 0.5, 1.5, 2.5, kInf, kNaN});
  EXPECT_FALSE(std::signbit(unary_of(UnaryOp::abs, {-0.0})[0]));
  check(UnaryOp::square, {kInf, 6.25, 0.25, 0, 0.25, 2.25, 6.25, kInf, kNaN});
  check(UnaryOp::relu, {0, 0, 0, 0, 0.5, 1.5, 2.5, kInf, kNaN});
  check(UnaryOp::floor, {-kInf, -3, -1, 0, 0, 1, 2, kInf, kNaN});
  check(UnaryOp::ceil, {-kInf, -2, 0, 0, 1, 2, 3, kInf, kNaN});
  check(UnaryOp::round, {-kInf, -2, 0, 0, 0, 2, 2, kInf, kNaN});
  check(UnaryOp::reciprocal, {0, -0.4f, -2, kInf, 2, 1 / 1.5f, 0.4f, 0, kNaN});
  check(UnaryOp::clamp, {-1, -1, -0.5, 0, 0.5, 1.5, 2, 2, kNaN}, {-1, 2});
  check(UnaryOp::add_scalar, {-kInf, -1.5, 0.5, 1, 1.5, 2.5, 3.5, kInf, kNaN}, {1, 0});
  check(UnaryOp::rsub_scalar, {kInf, 3.5, 1.5, 1, 0.5, -0.5, -1.5, -kInf, kNaN}, {1, 0});
  expect_equal(unary_of(UnaryOp::sqrt, {0, 4, 2.25, kInf, -1}), {0, 2, 1.5, kInf, kNaN});
  expect_equal(unary_of(UnaryOp::rsqrt, {0, 4, 0.25, kInf, -1}), {kInf, 0.5, 2, 0, kNaN});
  expect_equal(unary_of(UnaryOp::exp, {0, -kInf, kInf, kNaN, 89, -104}),
               {1, 0, kInf, kNaN, kInf, 0});
  expect_equal(unary_of(UnaryOp::log, {1, 0, kInf, kNaN, -1, -kInf}),
               {0, -kInf, kInf, kNaN, kNaN, kNaN});
  expect_equal(unary_of(UnaryOp::tanh, {0, kInf, -kInf, kNaN, 20}), {0, 1, -1, kNaN, 1});
  expect_equal(unary_of(UnaryOp::sigmoid, {0, kInf, -kInf, kNaN, -110}), {0.5, 1, 0, kNaN, 0});
  // CUDA's powf guarantees 4 ulp, not the nearest value.
  expect_close(unary_of(UnaryOp::pow_scalar, {0, 2, -2, kInf}, {3, 0}), {0, 8, -8, kInf},
               [](double want) { return std::abs(want) * 0x1p-21; });
}

TEST_P(Elementwise, MaximumAndMinimumPassNaNOn) {
  const Buffer a(device(), DType::f32, {4}, std::vector<double>{1, kNaN, 2, kNaN});
  const Buffer b(device(), DType::f32, {4}, std::vector<double>{kNaN, 1, 3, kNaN});
  Buffer y(device(), DType::f32, {4});
  kernels().elementwise.binary(stream, BinaryOp::maximum, a.view(), b.view(), y.view());
  expect_equal(y.values(), {kNaN, kNaN, 3, kNaN});
  kernels().elementwise.binary(stream, BinaryOp::minimum, a.view(), b.view(), y.view());
  expect_equal(y.values(), {kNaN, kNaN, 2, kNaN});
}

// PyTorch 2.11's results for the same operands. Long enough to fill whole vectors.
TEST_P(Elementwise, GradientsAtNaN) {
  constexpr std::int64_t kCount = 37;
  const Buffer g(device(), DType::f32, {kCount}, std::vector<double>(kCount, 3)),
      at(device(), DType::f32, {kCount}, std::vector<double>(kCount, kNaN)),
      one(device(), DType::f32, {kCount}, std::vector<double>(kCount, 1));
  Buffer grad(device(), DType::f32, {kCount});
  const auto check = [&](UnaryOp op, double want, UnaryParams p = {}) {
    kernels().elementwise.unary_backward(stream, op, p, g.view(), at.view(), grad.view());
    expect_equal(grad.values(), std::vector<double>(kCount, want));
  };
  check(UnaryOp::abs, 0);
  check(UnaryOp::relu, 3);
  check(UnaryOp::leaky_relu, 1.5, {0.5, 0});
  check(UnaryOp::gelu, kNaN);
  check(UnaryOp::clamp, 0, {-1, 1});
  check(UnaryOp::smooth_l1, kNaN, {1, 0});
  check(UnaryOp::smooth_l1, 0, {0, 0});  // l1
  for (const BinaryOp op : {BinaryOp::maximum, BinaryOp::minimum}) {
    for (const bool of_b : {false, true}) {
      kernels().elementwise.binary_backward(stream, op, of_b, g.view(), at.view(), one.view(),
                                            grad.view());
      expect_equal(grad.values(), std::vector<double>(kCount, 3));
    }
  }
}

TEST_P(Elementwise, AddScaled) {
  for (const DType dtype : kFloating) {
    for (const Layout& l : layouts()) {
      SCOPED_TRACE(std::string(to_string(dtype)) + " " + l.name);
      const Input x(device(), dtype, l, 1, -3, 3);
      const std::vector<double> before = values_for(dtype, numel(l.shape), -3, 3, 99);
      Buffer y(device(), dtype, l.shape, l.strides[0], before);
      kernels().elementwise.add_scaled(stream, -0.7, x.buffer.view(), y.view());
      std::vector<double> want;
      for (std::size_t i = 0; i < before.size(); ++i) want.push_back(before[i] - 0.7 * x.values[i]);
      expect_close(y.values(), want, bound_of(dtype));
    }
  }
}

// Without FMA contraction an operation gives the same bits at every vector width, so a result does
// not depend on the machine of a cluster that computed it. (exp, log and functions built on them
// use FMA.)
TEST(SimdLevels, ArithmeticAgreesBitForBit) {
  const Device device("cpu");
  const Stream stream = backend(device).runtime->default_stream(0);
  const std::vector<double> x = random_values(999, -3, 3), g = random_values(999, -3, 3, 5);
  const Buffer in(device, DType::f32, {999}, x), grad(device, DType::f32, {999}, g);
  const auto run_all = [&](SimdLevel level) {
    set_simd_level(level);
    std::vector<std::vector<double>> results;
    for (const UnaryOp op : {UnaryOp::square, UnaryOp::tanh, UnaryOp::sigmoid, UnaryOp::rsqrt,
                             UnaryOp::reciprocal, UnaryOp::rdiv_scalar}) {
      Buffer out(device, DType::f32, {999});
      backend(device).kernels.elementwise.unary_backward(stream, op, {0.3, 0}, grad.view(),
                                                         in.view(), out.view());
      results.push_back(out.values());
    }
    Buffer y(device, DType::f32, {999}, g);
    backend(device).kernels.elementwise.add_scaled(stream, 0.3, in.view(), y.view());
    results.push_back(y.values());
    return results;
  };
  const auto want = run_all(SimdLevel::baseline);
  for (const auto level : {SimdLevel::avx2, SimdLevel::avx512}) {
    if (level > best_simd_level()) continue;
    EXPECT_EQ(run_all(level), want);
  }
  set_simd_level(best_simd_level());
}

}  // namespace
}  // namespace weft::testing
