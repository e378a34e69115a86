// Element-wise loops of the floating types. f32 has every operation at every level. f64 and bf16
// have vector code for frequent operations of training, and the baseline's for the rest; this
// shortens the build.
#include <algorithm>
#include <cmath>
#include <string_view>

#include "weft/kernels/cpu/loops/elementwise.h"
#include "weft/kernels/cpu/loops/vector_math.h"

namespace weft::cpu {
namespace {

template <>
struct Forward<functor::Exp, float> {
  static float call(const functor::Exp&, float x) { return WEFT_SIMD::exp_f32(x); }
};
template <>
struct Forward<functor::Log, float> {
  static float call(const functor::Log&, float x) { return WEFT_SIMD::log_f32(x); }
};
template <>
struct Forward<functor::Exp, double> {
  static double call(const functor::Exp&, double x) { return WEFT_SIMD::exp_f64(x); }
};
template <>
struct Forward<functor::Sin, float> {
  static bool has(float x) { return !(std::fabs(x) > WEFT_SIMD::kMostAngle); }
  static float call(const functor::Sin&, float x) { return WEFT_SIMD::sin_f32(x); }
};
template <>
struct Backward<functor::Sin, float> {
  static bool has(float x) { return !(std::fabs(x) > WEFT_SIMD::kMostAngle); }
  static float call(const functor::Sin&, float g, float x) { return g * WEFT_SIMD::cos_f32(x); }
};
template <>
struct Forward<functor::Cos, float> {
  static bool has(float x) { return !(std::fabs(x) > WEFT_SIMD::kMostAngle); }
  static float call(const functor::Cos&, float x) { return WEFT_SIMD::cos_f32(x); }
};
template <>
struct Backward<functor::Cos, float> {
  static bool has(float x) { return !(std::fabs(x) > WEFT_SIMD::kMostAngle); }
  static float call(const functor::Cos&, float g, float x) { return -g * WEFT_SIMD::sin_f32(x); }
};
template <>
struct Forward<functor::Sigmoid, float> {
  static float call(const functor::Sigmoid&, float x) { return WEFT_SIMD::sigmoid_f32(x); }
};
template <>
struct Forward<functor::Tanh, float> {
  static float call(const functor::Tanh&, float x) { return WEFT_SIMD::tanh_f32(x); }
};
template <>
struct Forward<functor::Erf, float> {
  static float call(const functor::Erf&, float x) { return WEFT_SIMD::erf_f32(x); }
};
template <>
struct Backward<functor::Erf, float> {
  static float call(const functor::Erf&, float g, float x) {
    constexpr auto kSlope = static_cast<float>(2 * std::numbers::inv_sqrtpi);
    return kSlope * WEFT_SIMD::exp_f32(-(x * x)) * g;
  }
};
template <>
struct Forward<functor::Gelu, float> {
  static float call(const functor::Gelu&, float x) { return x * WEFT_SIMD::normal_cdf_f32(x); }
};
template <>
struct Backward<functor::Gelu, float> {
  static float call(const functor::Gelu&, float g, float x) {
    constexpr auto kDensity =
        static_cast<float>(std::numbers::inv_sqrtpi * std::numbers::sqrt2 / 2);
    const float density = kDensity * WEFT_SIMD::exp_f32(-0.5f * x * x);
    return g * (WEFT_SIMD::normal_cdf_f32(x) + x * density);
  }
};
template <>
struct Forward<functor::GeluTanh, float> {
  static float call(const functor::GeluTanh&, float x) {
    return 0.5f * x * (1.0f + WEFT_SIMD::tanh_f32(functor::gelu_inner(x)));
  }
};
template <>
struct Backward<functor::GeluTanh, float> {
  static float call(const functor::GeluTanh&, float g, float x) {
    return g * functor::gelu_tanh_slope(x, WEFT_SIMD::tanh_f32(functor::gelu_inner(x)));
  }
};
template <>
struct Forward<functor::LogSigmoid, float> {
  static float call(const functor::LogSigmoid&, float x) { return WEFT_SIMD::log_sigmoid_f32(x); }
};
template <>
struct Backward<functor::LogSigmoid, float> {
  static float call(const functor::LogSigmoid&, float g, float x) {
    return g * WEFT_SIMD::sigmoid_f32(-x);
  }
};
template <>
struct Forward<functor::Silu, float> {
  static float call(const functor::Silu&, float x) { return x * WEFT_SIMD::sigmoid_f32(x); }
};
template <>
struct Backward<functor::Silu, float> {
  static float call(const functor::Silu&, float g, float x) {
    const float y = WEFT_SIMD::sigmoid_f32(x);
    return g * (y * (1.0f + x * (1.0f - y)));
  }
};
template <>
struct Forward<functor::Softplus, float> {
  static float call(const functor::Softplus& f, float x) {
    const float a = static_cast<float>(f.p.a), b = static_cast<float>(f.p.b), z = x * a;
    return z > b ? x : (0.0f - WEFT_SIMD::log_sigmoid_f32(-z)) / a;  // 0 - 0 is +0
  }
};
template <>
struct Backward<functor::Softplus, float> {
  static float call(const functor::Softplus& f, float g, float x) {
    const float a = static_cast<float>(f.p.a), b = static_cast<float>(f.p.b), z = x * a;
    return z > b ? g : g * WEFT_SIMD::sigmoid_f32(z);
  }
};
template <>
struct BinaryForward<functor::Pow, float> {
  static float call(float a, float b) { return WEFT_SIMD::pow_f32(a, b); }
};
template <class F, class... Fs>
constexpr bool is_any_of = (std::is_same_v<F, Fs> || ...);

#define WEFT_TEXT(x) #x
#define WEFT_TEXT_OF(x) WEFT_TEXT(x)
constexpr bool kBaseline = std::string_view(WEFT_TEXT_OF(WEFT_SIMD)) == "baseline";

template <class T, class F>
constexpr bool wanted = kBaseline || std::is_same_v<T, float> ||
                        is_any_of<F, functor::Add, functor::Sub, functor::Mul, functor::Relu,
                                  functor::LeakyRelu, functor::AddScalar, functor::MulScalar,
                                  functor::Square, functor::Exp, functor::Sigmoid>;

template <class T, class F>
constexpr void set_unary(ElementwiseLoops& rows, UnaryOp op) {
  if constexpr (wanted<T, F>) {
    rows.unary[static_cast<int>(op)] = unary_row<T, F>;
    rows.unary_backward[static_cast<int>(op)] = unary_backward_row<T, F>;
  }
}

template <class T, class F>
constexpr void set_binary(ElementwiseLoops& rows, BinaryOp op) {
  if constexpr (wanted<T, F>) {
    rows.binary[static_cast<int>(op)] = binary_row<T, F>;
    rows.binary_single[static_cast<int>(op)][0] = binary_single_row<T, F, false>;
    rows.binary_single[static_cast<int>(op)][1] = binary_single_row<T, F, true>;
    rows.binary_backward[static_cast<int>(op)][0] = binary_backward_row<T, F, false>;
    rows.binary_backward[static_cast<int>(op)][1] = binary_backward_row<T, F, true>;
  }
}

template <class T>
void add_scaled_row(std::int64_t n, char* const* data, const void* params) {
  using C = accumulate_t<T>;
  const C alpha = static_cast<C>(*static_cast<const double*>(params));
  T* y = reinterpret_cast<T*>(data[0]);
  const T* before = reinterpret_cast<const T*>(data[1]);
  const T* x = reinterpret_cast<const T*>(data[2]);
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) y[i] = store<T>(load(before[i]) + alpha * load(x[i]));
}

/// Calls loop(begin, end, f) for parts of [0, n), with f(x, i) = scalar_power(x, a). With one of
/// the exponents for which that is a product, a quotient or a root as a constant, loops over f
/// vectorise; otherwise over an array of exponents, for gcc does not with a single one.
template <class C, class Loop>
void with_power(std::int64_t n, C a, const Loop& loop) {
  const auto by_constant = [&]<double... kExponents>() {
    return ((a == C(kExponents) &&
             (loop(0, n, [](C x, std::int64_t) { return functor::scalar_power(x, C(kExponents)); }),
              true)) ||
            ...);
  };
  if (by_constant.template operator()<2.0, 3.0, 1.0, 0.0, 0.5, -0.5, -1.0, -2.0>()) return;
  constexpr std::int64_t kBlock = 256;
  C exponents[kBlock];
  std::fill_n(exponents, kBlock, a);
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    loop(begin, std::min(n, begin + kBlock),
         [&](C x, std::int64_t i) { return WEFT_SIMD::power(x, exponents[i - begin]); });
  }
}

template <class T>
void pow_scalar_row(std::int64_t n, char* const* data, const void* params) {
  using C = accumulate_t<T>;
  T* y = reinterpret_cast<T*>(data[0]);
  const T* x = reinterpret_cast<const T*>(data[1]);
  const C a = static_cast<C>(static_cast<const UnaryParams*>(params)->a);
  with_power(n, a, [=](std::int64_t begin, std::int64_t end, const auto& power) {
    WEFT_VECTOR_LOOP
    for (std::int64_t i = begin; i < end; ++i) y[i] = store<T>(power(load(x[i]), i));
  });
}

template <class T>
void pow_scalar_backward_row(std::int64_t n, char* const* data, const void* params) {
  using C = accumulate_t<T>;
  const C a = static_cast<C>(static_cast<const UnaryParams*>(params)->a);
  T* grad_x = reinterpret_cast<T*>(data[0]);
  const T* grad_y = reinterpret_cast<const T*>(data[1]);
  const T* x = reinterpret_cast<const T*>(data[2]);
  with_power(n, a - C(1), [=](std::int64_t begin, std::int64_t end, const auto& power) {
    WEFT_VECTOR_LOOP
    for (std::int64_t i = begin; i < end; ++i) {
      grad_x[i] = store<T>(a == C(0) ? C(0) : load(grad_y[i]) * (a * power(load(x[i]), i)));
    }
  });
}

template <class T>
constexpr ElementwiseLoops loops() {
  ElementwiseLoops rows;
#define X(value, name, F, ...) set_unary<T, functor::F>(rows, UnaryOp::value);
  WEFT_UNARY_OPS(X)
#undef X
#define X(value, F, ...) set_unary<T, functor::F>(rows, UnaryOp::value);
  WEFT_SCALAR_OPS(X)
#undef X
#define X(value, name, F, ...) set_binary<T, functor::F>(rows, BinaryOp::value);
  WEFT_BINARY_OPS(X)
#undef X
  if constexpr (wanted<T, functor::PowScalar>) {
    rows.unary[static_cast<int>(UnaryOp::pow_scalar)] = pow_scalar_row<T>;
    rows.unary_backward[static_cast<int>(UnaryOp::pow_scalar)] = pow_scalar_backward_row<T>;
  }
  rows.add_scaled = add_scaled_row<T>;
  return rows;
}

}  // namespace

namespace WEFT_SIMD {

constinit const ByDType<ElementwiseLoops> elementwise_loops = {loops<float>(), loops<double>(),
                                                               loops<bf16>()};

}  // namespace WEFT_SIMD
}  // namespace weft::cpu
