// Element-wise loops of the floating types. f32 has every operation at every level; f64 and bf16
// get vector code for what training does all the time and the baseline's for the rest, which keeps
// the build short.
#include <string_view>

#include "weft/kernels/cpu/elementwise_rows.h"
#include "weft/kernels/cpu/vector_math.h"

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

template <class F, class... Fs>
constexpr bool is_any_of = (std::is_same_v<F, Fs> || ...);

#define WEFT_TEXT(x) #x
#define WEFT_TEXT_OF(x) WEFT_TEXT(x)
constexpr bool kBaseline = std::string_view(WEFT_TEXT_OF(WEFT_SIMD)) == "baseline";

template <class T, class F>
constexpr bool wanted =
    kBaseline || std::is_same_v<T, float> ||
    is_any_of<F, functor::Add, functor::Sub, functor::Mul, functor::Relu, functor::LeakyRelu,
              functor::AddScalar, functor::MulScalar, functor::Square, functor::Sigmoid>;

template <class T, class F>
constexpr void set_unary(ElementwiseRows& rows, UnaryOp op) {
  if constexpr (wanted<T, F>) {
    rows.unary[static_cast<int>(op)] = unary_row<T, F>;
    rows.unary_backward[static_cast<int>(op)] = unary_backward_row<T, F>;
  }
}

template <class T, class F>
constexpr void set_binary(ElementwiseRows& rows, BinaryOp op) {
  if constexpr (wanted<T, F>) {
    rows.binary[static_cast<int>(op)] = binary_row<T, F>;
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

template <class T>
constexpr void fill(ElementwiseRows& rows) {
#define X(value, name, F, ...) set_unary<T, functor::F>(rows, UnaryOp::value);
  WEFT_UNARY_OPS(X)
#undef X
#define X(value, F, ...) set_unary<T, functor::F>(rows, UnaryOp::value);
  WEFT_SCALAR_OPS(X)
#undef X
#define X(value, name, F, ...) set_binary<T, functor::F>(rows, BinaryOp::value);
  WEFT_BINARY_OPS(X)
#undef X
  rows.add_scaled = add_scaled_row<T>;
}

constexpr SimdKernels functions() {
  SimdKernels table;
  fill<float>(table.f32.elementwise);
  fill<double>(table.f64.elementwise);
  fill<bf16>(table.bf16.elementwise);
  return table;
}

}  // namespace

namespace WEFT_SIMD {

constinit const SimdKernels elementwise_functions = functions();

}  // namespace WEFT_SIMD
}  // namespace weft::cpu
