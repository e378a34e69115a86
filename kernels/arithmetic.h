// Rounding, remainders, quotients and powers of one element, for functors.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "weft/core/base/dtype.h"

// clang-format off: one line per operation
namespace weft::functor {

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

/// floor(a / b), also if the rounded a / b reaches the next integer. Integers divided by 0 give 0;
/// tensor/ refuses them before.
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

/// x^a for one exponent a and many x. As PyTorch, products, quotients and roots for the most
/// frequent exponents, so (-infinity)^0.5 is NaN and (-0)^-0.5 is -infinity, unlike C's pow.
template <class T>
WEFT_HD T scalar_power(T x, T a) {
  if constexpr (!std::is_integral_v<T>) {
    if (a == T(2) || a == T(3)) return a == T(2) ? x * x : x * x * x;
    if (a == T(1) || a == T(0)) return a == T(1) ? x : T(1);
    if (a == T(-1) || a == T(-2)) return T(1) / (a == T(-1) ? x : x * x);
    if (a == T(0.5)) return std::sqrt(x);
    if (a == T(-0.5)) return T(1) / std::sqrt(x);
  }
  return power(x, a);
}

}  // namespace weft::functor
// clang-format on
