// The functors of element-wise operations: the value and the derivative of one element.
// Private to the library: no public header includes this.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

#include "weft/core/base/dtype.h"
#include "weft/kernels/arithmetic.h"
#include "weft/kernels/elementwise_list.h"

namespace weft {

/// What backward needs besides the gradient: nothing, the input x, or the output y.
enum class Saves : std::uint8_t { nothing, x, y };

// clang-format off: one line per operation
namespace functor {

/// The standard normal distribution function: the probability that N(0, 1) <= x.
template <class T>
WEFT_HD T normal_cdf(T x) {
  return T(0.5) * (T(1) + std::erf(x * T(std::numbers::sqrt2 / 2)));
}
/// The derivative of normal_cdf.
template <class T>
WEFT_HD T normal_density(T x) {
  return T(std::numbers::inv_sqrtpi * std::numbers::sqrt2 / 2) * std::exp(T(-0.5) * x * x);
}

/// 1 / (1 + exp(-x)), accurate also for small results. exp of a negative number cannot overflow.
/// The rounding error of the sum is corrected to first order; 1 / sum is y or 1 - y.
template <class T>
WEFT_HD T sigmoid(T x) {
  const T e = std::exp(x < T(0) ? x : -x);
  const T sum = T(1) + e;
  const T y = (x < T(0) ? e : T(1)) / sum;
  return y - y * ((e - (sum - T(1))) * (x < T(0) ? T(1) - y : y));
}

/// d(x sigmoid(x))/dx
template <class T>
WEFT_HD T silu_slope(T x) {
  const T y = sigmoid(x);
  return y * (T(1) + x * (T(1) - y));
}
/// log(1 + exp(x)) without overflow.
template <class T>
WEFT_HD T softplus(T x) {
  return (x < T(0) ? T(0) : x) + std::log1p(std::exp(x < T(0) ? x : -x));
}

// The tanh approximation of GELU: 0.5 x (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3).
inline constexpr double kGeluScale = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
inline constexpr double kGeluCubic = 0.044715;
template <class T>
WEFT_HD T gelu_inner(T x) {
  return T(kGeluScale) * (x + T(kGeluCubic) * x * x * x);
}
/// dy/dx at x, given t = tanh(u).
template <class T>
WEFT_HD T gelu_tanh_slope(T x, T t) {
  return T(0.5) * (T(1) + t) +
         T(0.5) * x * (T(1) - t * t) * T(kGeluScale) * (T(1) + T(3 * kGeluCubic) * x * x);
}

// T is the type in which the operation computes: float for f32 and bf16, double for f64,
// std::int64_t for the integer types. bwd(g, s) returns dL/dx from g = dL/dy and the saved value s
// (x or y).

#define WEFT_UNARY_FUNCTOR(Name, saved, forward, backward)          \
  struct Name {                                                     \
    static constexpr Saves saves = Saves::saved;                    \
    UnaryParams p;                                                  \
    template <class T>                                              \
    WEFT_HD T fwd(T x) const {                                      \
      [[maybe_unused]] const T a = T(p.a), b = T(p.b);              \
      return T(forward);                                            \
    }                                                               \
    template <class T>                                              \
    WEFT_HD T bwd(T g, [[maybe_unused]] T s) const {                \
      [[maybe_unused]] const T a = T(p.a), b = T(p.b);              \
      return T(backward);                                           \
    }                                                               \
  };

WEFT_UNARY_FUNCTOR(Neg, nothing, -x, -g)
// 0 - x, not -x, so that -0 becomes 0.
WEFT_UNARY_FUNCTOR(Abs, x, x <= T(0) ? T(0) - x : x, s > T(0) ? g : (s < T(0) ? -g : T(0)))
WEFT_UNARY_FUNCTOR(Sign, nothing, T(x > T(0)) - T(x < T(0)), g * T(0))
// The factor 2 comes last: 2 s may overflow where s g does not.
WEFT_UNARY_FUNCTOR(Square, x, x * x, T(2) * (s * g))
WEFT_UNARY_FUNCTOR(Sqrt, y, std::sqrt(x), g / (T(2) * s))
WEFT_UNARY_FUNCTOR(Rsqrt, y, T(1) / std::sqrt(x), T(-0.5) * g * s * s * s)
WEFT_UNARY_FUNCTOR(Reciprocal, y, T(1) / x, -g * s * s)
WEFT_UNARY_FUNCTOR(Exp, y, std::exp(x), g * s)
WEFT_UNARY_FUNCTOR(Log, x, std::log(x), g / s)
WEFT_UNARY_FUNCTOR(Log1p, x, std::log1p(x), g / (T(1) + s))
WEFT_UNARY_FUNCTOR(Expm1, y, std::expm1(x), g * (s + T(1)))
WEFT_UNARY_FUNCTOR(Erf, x, std::erf(x), T(2 * std::numbers::inv_sqrtpi) * std::exp(-(s * s)) * g)
WEFT_UNARY_FUNCTOR(Tan, y, std::tan(x), g * (T(1) + s * s))
WEFT_UNARY_FUNCTOR(Sin, x, std::sin(x), g * std::cos(s))
WEFT_UNARY_FUNCTOR(Cos, x, std::cos(x), -g * std::sin(s))
WEFT_UNARY_FUNCTOR(Tanh, y, std::tanh(x), g * (T(1) - s * s))
WEFT_UNARY_FUNCTOR(Sigmoid, y, sigmoid(x), g * s * (T(1) - s))
// A NaN in x gives NaN, and the gradient passes there.
WEFT_UNARY_FUNCTOR(Relu, y, x > T(0) || x != x ? x : T(0), s <= T(0) ? T(0) : g)
WEFT_UNARY_FUNCTOR(Gelu, x, x * normal_cdf(x), g * (normal_cdf(s) + s * normal_density(s)))
WEFT_UNARY_FUNCTOR(GeluTanh, x, T(0.5) * x * (T(1) + std::tanh(gelu_inner(x))),
                   g * gelu_tanh_slope(s, std::tanh(gelu_inner(s))))
// log(sigmoid(x)), without overflow and accurate also for small results.
WEFT_UNARY_FUNCTOR(LogSigmoid, x, (x < T(0) ? x : T(0)) - std::log1p(std::exp(x < T(0) ? x : -x)),
                   g * sigmoid(-s))
WEFT_UNARY_FUNCTOR(Silu, x, x * sigmoid(x), g * silu_slope(s))
WEFT_UNARY_FUNCTOR(Floor, nothing, floor(x), g * T(0))
WEFT_UNARY_FUNCTOR(Ceil, nothing, ceil(x), g * T(0))
WEFT_UNARY_FUNCTOR(Round, nothing, round(x), g * T(0))
WEFT_UNARY_FUNCTOR(Trunc, nothing, trunc(x), g * T(0))
WEFT_UNARY_FUNCTOR(AddScalar, nothing, x + a, g)
WEFT_UNARY_FUNCTOR(MulScalar, nothing, x * a, g * a)
WEFT_UNARY_FUNCTOR(RsubScalar, nothing, a - x, -g)
WEFT_UNARY_FUNCTOR(RdivScalar, x, a / x, -g * ((a / s) / s))
// Multiplies a and the power first: that may be in T's range where g times one of them is not.
WEFT_UNARY_FUNCTOR(PowScalar, x, scalar_power(x, a),
                   a == T(0) ? T(0) : g * (a * scalar_power(s, a - T(1))))
// a >= 0, so y has x's sign.
WEFT_UNARY_FUNCTOR(LeakyRelu, y, x > T(0) ? x : x * a, s > T(0) ? g : g * a)
// As PyTorch: x = 0 belongs to the negative side, also in the gradient.
WEFT_UNARY_FUNCTOR(Elu, x, x <= T(0) ? a * std::expm1(x) : x, s <= T(0) ? g * a * std::exp(s) : g)
// log(1 + exp(ax)) / a, and x where ax > b.
WEFT_UNARY_FUNCTOR(Softplus, x, x * a > b ? x : softplus(x * a) / a,
                   s * a > b ? g : g * sigmoid(s * a))
// x^2 / (2a) where |x| < a, else |x| - a/2. a = 0: |x|, whose gradient at 0 and at NaN is 0.
WEFT_UNARY_FUNCTOR(SmoothL1, x,
                   (x < T(0) ? -x : x) < a ? T(0.5) * x * x / a : (x < T(0) ? -x : x) - T(0.5) * a,
                   a > T(0) && !((s < T(0) ? -s : s) >= a)
                       ? g * s / a
                       : (s > T(0) ? g : (s < T(0) ? -g : T(0))))
// NaN stays NaN. If the lower bound a is above the upper bound b, the result is b. The gradient is
// g where a <= x <= b, else 0.
WEFT_UNARY_FUNCTOR(Clamp, x, (x < a ? a : x) > b ? b : (x < a ? a : x),
                   s >= a && s <= b ? g : T(0))

#undef WEFT_UNARY_FUNCTOR

// bwd_a and bwd_b return dL/da and dL/db from g = dL/dy and both inputs. passes_grad: both results
// are g or -g, so the inputs are not saved.
#define WEFT_BINARY_FUNCTOR(Name, passes, forward, backward_a, backward_b)                     \
  struct Name {                                                                                \
    static constexpr bool passes_grad = passes;                                                \
    template <class T>                                                                         \
    WEFT_HD T fwd(T a, T b) const {                                                            \
      return T(forward);                                                                       \
    }                                                                                          \
    template <class T>                                                                         \
    WEFT_HD T bwd_a(T g, [[maybe_unused]] T a, [[maybe_unused]] T b) const {                   \
      return T(backward_a);                                                                    \
    }                                                                                          \
    template <class T>                                                                         \
    WEFT_HD T bwd_b(T g, [[maybe_unused]] T a, [[maybe_unused]] T b) const {                   \
      return T(backward_b);                                                                    \
    }                                                                                          \
  };

WEFT_BINARY_FUNCTOR(Add, true, a + b, g, g)
WEFT_BINARY_FUNCTOR(Sub, true, a - b, g, -g)
WEFT_BINARY_FUNCTOR(Mul, false, a* b, g* b, g* a)
// (a / b) / b, not a / (b * b): b * b overflows or underflows before the quotient does.
WEFT_BINARY_FUNCTOR(Div, false, a / b, g / b, -g * ((a / b) / b))
WEFT_BINARY_FUNCTOR(Pow, false, power(a, b), b == T(0) ? T(0) : g * (b * std::pow(a, b - T(1))),
                    a == T(0) && b >= T(0) ? T(0) : g * (std::pow(a, b) * std::log(a)))
WEFT_BINARY_FUNCTOR(Remainder, false, remainder_of(a, b), g, -g * floor_quotient(a, b))
WEFT_BINARY_FUNCTOR(FloorDivide, false, floor_quotient(a, b), g * T(0), g * T(0))
// As PyTorch: a NaN wins, and then both operands get g. If a = b, both get g / 2.
WEFT_BINARY_FUNCTOR(Maximum, false, a != a ? a : (b != b ? b : (a > b ? a : b)),
                    a < b ? T(0) : (a == b ? g / T(2) : g), b < a ? T(0) : (a == b ? g / T(2) : g))
WEFT_BINARY_FUNCTOR(Minimum, false, a != a ? a : (b != b ? b : (a < b ? a : b)),
                    a > b ? T(0) : (a == b ? g / T(2) : g), b > a ? T(0) : (a == b ? g / T(2) : g))

#undef WEFT_BINARY_FUNCTOR

}  // namespace functor

// clang-format on

}  // namespace weft
