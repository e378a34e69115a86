// Element-wise operations. Each has one functor and one line in a list. Its enum value, CPU loop,
// CUDA kernel, backward rule and test case are generated from this line.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <type_traits>

#include "weft/core/runtime.h"
#include "weft/kernels/view.h"

namespace weft {

/// The scalar operands of an operation, for example the two bounds of clamp.
struct UnaryParams {
  double a = 0;
  double b = 0;
};

/// What backward needs besides the gradient: nothing, the input x, or the output y.
enum class Saves : std::uint8_t { nothing, x, y };

// clang-format off: the lists read as tables
namespace functor {

/// The standard normal distribution function: the probability that N(0, 1) <= x.
template <class T>
WEFT_HD T normal_cdf(T x) {
  return T(0.5) * (T(1) + std::erf(x * T(std::numbers::sqrt2 / 2)));
}
/// Its derivative.
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

// Integers are returned as they are: a float could not hold all of them.
template <class T>
WEFT_HD T floor(T x) {
  if constexpr (std::is_integral_v<T>) return x;
  else return std::floor(x);
}
template <class T>
WEFT_HD T ceil(T x) {
  if constexpr (std::is_integral_v<T>) return x;
  else return std::ceil(x);
}
/// Rounds half to even, as PyTorch and numpy.
template <class T>
WEFT_HD T round(T x) {
  if constexpr (std::is_integral_v<T>) return x;
  else return std::nearbyint(x);
}

/// Rounds towards 0.
template <class T>
WEFT_HD T trunc(T x) {
  if constexpr (std::is_integral_v<T>) return x;
  else return std::trunc(x);
}

/// a - b floor(a / b), without the rounding errors of this formula. The result has the sign of b,
/// as % in Python. Integers modulo 0 give 0; tensor/ refuses them before.
template <class T>
WEFT_HD T remainder_of(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    if (b == 0 || b == -1) return 0;
    const T r = a % b;
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
  } else {
    const T r = std::fmod(a, b);
    return r != T(0) && (r < T(0)) != (b < T(0)) ? r + b : r;
  }
}

/// floor(a / b), also where a rounded a / b would reach the next whole number. Integers divided by
/// 0 give 0; tensor/ refuses them before.
template <class T>
WEFT_HD T floor_quotient(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    if (b == 0) return 0;
    if (b == -1) return static_cast<T>(-static_cast<std::uint64_t>(a));  // -a may overflow in T
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
  } else {
    if (b == T(0)) return a / b;
    const T r = std::fmod(a, b);
    T q = (a - r) / b;
    if (r != T(0) && (r < T(0)) != (b < T(0))) q -= T(1);
    if (q == T(0)) return std::copysign(T(0), a / b);
    const T whole = std::floor(q);
    return q - whole > T(0.5) ? whole + T(1) : whole;
  }
}

/// a^b. For integers as in PyTorch: modulo 2^64. With b < 0, the result 1 / a^|b| is rounded
/// towards 0; for a = 0 it is 0.
template <class T>
WEFT_HD T power(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    if (b < 0) return a == 1 ? 1 : (a == -1 ? (b % 2 == 0 ? 1 : -1) : 0);
    std::uint64_t result = 1;
    for (std::uint64_t base = a, rest = b; rest > 0; rest >>= 1, base *= base) {
      if (rest & 1) result *= base;
    }
    return static_cast<T>(result);
  } else {
    return std::pow(a, b);
  }
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

// T is the type the operation computes in: float for f32 and bf16, double for f64, std::int64_t for
// the integer types. bwd(g, s) returns dL/dx from g = dL/dy and the saved value s (x or y).

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
WEFT_UNARY_FUNCTOR(Abs, x, x < T(0) ? -x : x, s > T(0) ? g : (s < T(0) ? -g : T(0)))
WEFT_UNARY_FUNCTOR(Sign, nothing, T(x > T(0)) - T(x < T(0)), g * T(0))
// Doubled last: 2 s may leave the range where s g does not.
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
// a times the power first: their product may be in T's range where g times one of them is not.
WEFT_UNARY_FUNCTOR(PowScalar, x, power(x, a), a == T(0) ? T(0) : g * (a * std::pow(s, a - T(1))))
// a >= 0, so that y has x's sign.
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

// X(enum value, function name, functor, integer types too?, low and high end of the test domain).
// The test domains avoid kinks and poles, so that finite differences are valid.
#define WEFT_UNARY_OPS(X)                                     \
  X(neg, neg, Neg, true, -3, 3)                               \
  X(abs, abs, Abs, true, 0.1, 3)                              \
  X(sign, sign, Sign, true, 0.1, 3)                           \
  X(square, square, Square, true, -3, 3)                      \
  X(sqrt, sqrt, Sqrt, false, 0.1, 3)                          \
  X(rsqrt, rsqrt, Rsqrt, false, 0.1, 3)                       \
  X(reciprocal, reciprocal, Reciprocal, false, 0.2, 3)        \
  X(exp, exp, Exp, false, -3, 3)                              \
  X(log, log, Log, false, 0.1, 3)                             \
  X(log1p, log1p, Log1p, false, -0.8, 3)                      \
  X(expm1, expm1, Expm1, false, -3, 3)                        \
  X(erf, erf, Erf, false, -3, 3)                              \
  X(tan, tan, Tan, false, -1.2, 1.2)                          \
  X(sin, sin, Sin, false, -3, 3)                              \
  X(cos, cos, Cos, false, -3, 3)                              \
  X(tanh, tanh, Tanh, false, -3, 3)                           \
  X(sigmoid, sigmoid, Sigmoid, false, -3, 3)                  \
  X(relu, relu, Relu, true, 0.1, 3)                           \
  X(gelu, gelu, Gelu, false, -3, 3)                           \
  X(gelu_tanh, gelu_tanh, GeluTanh, false, -3, 3)             \
  X(log_sigmoid, log_sigmoid, LogSigmoid, false, -3, 3)       \
  X(silu, silu, Silu, false, -3, 3)                           \
  X(floor, floor, Floor, true,  0.1, 0.9)                     \
  X(ceil, ceil, Ceil, true,  0.1, 0.9)                        \
  X(round, round, Round, true,  0.6, 0.9)                     \
  X(trunc, trunc, Trunc, true,  0.1, 0.9)

// X(enum value, functor, integer types too?): operations of one tensor and one or two scalars.
#define WEFT_SCALAR_OPS(X)               \
  X(add_scalar, AddScalar, true)         \
  X(mul_scalar, MulScalar, true)         \
  X(rsub_scalar, RsubScalar, true)       \
  X(rdiv_scalar, RdivScalar, false)      \
  X(pow_scalar, PowScalar, true)        \
  X(leaky_relu, LeakyRelu, false)        \
  X(elu, Elu, false)                     \
  X(softplus, Softplus, false)           \
  X(smooth_l1, SmoothL1, false)          \
  X(clamp, Clamp, true)

// X(enum value, function name, functor, integer types too?, test domain of a and b)
#define WEFT_BINARY_OPS(X)                       \
  X(add, add, Add, true, -3, 3)                  \
  X(sub, sub, Sub, true, -3, 3)                  \
  X(mul, mul, Mul, true, -3, 3)                  \
  X(div, div, Div, false, 0.3, 3)                \
  X(pow, pow, Pow, true,  0.3, 3)                \
  X(maximum, maximum, Maximum, true, -3, 3)      \
  X(minimum, minimum, Minimum, true, -3, 3)      \
  X(remainder, remainder, Remainder, true, 0.3, 3)           \
  X(floor_divide, floor_divide, FloorDivide, true, 0.3, 3)

// X(enum value, function name, C++ expression of a and b)
#define WEFT_COMPARE_OPS(X)                          \
  X(eq, eq, a == b)                                  \
  X(ne, ne, a != b)                                  \
  X(lt, lt, a < b)                                   \
  X(le, le, a <= b)                                  \
  X(gt, gt, a > b)                                   \
  X(ge, ge, a >= b)                                  \
  X(logical_and, logical_and, (a != 0) && (b != 0))  \
  X(logical_or, logical_or, (a != 0) || (b != 0))    \
  X(logical_xor, logical_xor, (a != 0) != (b != 0))

// clang-format on

enum class UnaryOp : std::uint8_t {
#define X(value, ...) value,
  WEFT_UNARY_OPS(X) WEFT_SCALAR_OPS(X)
#undef X
};
enum class BinaryOp : std::uint8_t {
#define X(value, ...) value,
  WEFT_BINARY_OPS(X)
#undef X
};
enum class CompareOp : std::uint8_t {
#define X(value, ...) value,
  WEFT_COMPARE_OPS(X)
#undef X
};

/// All views of a call have the same shape and any strides; a broadcast operand has stride 0. They
/// have one dtype, except in copy, in compare, whose y is boolean, and for the condition of where.
/// An output may be the same view as an input (in place), but must not overlap it in any other way.
struct ElementwiseKernels {
  void (*unary)(const Stream&, UnaryOp, UnaryParams, const View& x, const View& y);
  /// saved: x or y, according to the functor's `saves`; empty for Saves::nothing.
  void (*unary_backward)(const Stream&, UnaryOp, UnaryParams, const View& grad_y, const View& saved,
                         const View& grad_x);
  void (*binary)(const Stream&, BinaryOp, const View& a, const View& b, const View& y);
  /// grad = dL/da, or dL/db if of_b, in y's shape. The caller sums over broadcast dimensions.
  void (*binary_backward)(const Stream&, BinaryOp, bool of_b, const View& grad_y, const View& a,
                          const View& b, const View& grad);
  void (*compare)(const Stream&, CompareOp, const View& a, const View& b, const View& y);
  /// y = condition ? a : b; condition is boolean.
  void (*where)(const Stream&, const View& condition, const View& a, const View& b, const View& y);
  /// y = x, converted to y's dtype as by element_cast (core/dtype.h).
  void (*copy)(const Stream&, const View& x, const View& y);
  /// y = value, converted in the same way.
  void (*fill)(const Stream&, double value, const View& y);
  /// y += alpha * x, floating dtypes only. Gradients are added with it.
  void (*add_scaled)(const Stream&, double alpha, const View& x, const View& y);
  /// y[i] = start + i * step, y 1-D.
  void (*arange)(const Stream&, double start, double step, const View& y);
};

}  // namespace weft
