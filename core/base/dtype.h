// Element types and the dispatch from a run-time DType to a C++ type.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <limits>
#include <string_view>
#include <type_traits>
#include <utility>

#include "weft/core/base/error.h"

// Host and device code share functors and bf16; outside nvcc the marks vanish.
#if defined(__CUDACC__)
#define WEFT_HD __host__ __device__
#else
#define WEFT_HD
#endif

namespace weft {

enum class DType : std::uint8_t { f32, f64, bf16, i64, i32, u8, boolean };

/// bfloat16: the upper half of an f32; conversion rounds to nearest even, NaN stays NaN.
struct bf16 {
  std::uint16_t bits = 0;

  bf16() = default;
  WEFT_HD explicit bf16(float value) : bits(round(value)) {}
  WEFT_HD explicit operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }

 private:
  WEFT_HD static std::uint16_t round(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((u >> 16) | 0x0040u);
    return static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
};

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::bf16: return 2;
    case DType::u8:
    case DType::boolean: return 1;
  }
  return 0;
}

constexpr bool is_floating(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f64 || dtype == DType::bf16;
}

/// "f32", "bf16", "bool" ...
const char* to_string(DType dtype);
std::ostream& operator<<(std::ostream& out, DType dtype);
/// The inverse of to_string. Throws InvalidArgument.
DType parse_dtype(std::string_view text);
/// The dtype in which an operation on both computes (PyTorch's promotion between tensors of equal
/// rank: bool < u8 < i32 < i64 < bf16 < f32 < f64).
DType promote(DType a, DType b);

namespace detail {
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::u8;
};
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::boolean;
};
}  // namespace detail

template <class T>
inline constexpr DType dtype_of = detail::DTypeOf<T>::value;

/// The type for sums and intermediate values of T: f32 for bf16, i64 for small integers.
template <class T>
using accumulate_t = std::conditional_t<std::is_same_v<T, bf16>, float,
                                        std::conditional_t<std::is_integral_v<T>, std::int64_t, T>>;

namespace detail {
/// Converts value to the integer type To without its fraction. A value outside To's range becomes
/// the nearest value of To, NaN becomes 0. C++ leaves these cases undefined, and processors and
/// GPUs differ.
template <class To, class From>
WEFT_HD To saturate_cast(From value) {
  constexpr To least = std::numeric_limits<To>::min(), most = std::numeric_limits<To>::max();
  constexpr auto low = static_cast<From>(least);
  constexpr From above = 2 * static_cast<From>(most / 2 + 1);
  if constexpr (sizeof(To) == 8) {  // baseline processors have no vector conversion to 64 bits
    if (value >= low && value < above) return static_cast<To>(value);
    return value != value ? To(0) : (value < low ? least : most);
  } else {
    // Without branches, and converts only values that fit, so that loops vectorise.
    constexpr bool exact = std::numeric_limits<To>::digits <= std::numeric_limits<From>::digits;
    constexpr From high =
        exact ? static_cast<From>(most) : above * (1 - std::numeric_limits<From>::epsilon() / 2);
    const From bounded = value > low ? (value < high ? value : high) : low;
    const To whole = static_cast<To>(bounded);
    if constexpr (std::is_unsigned_v<To>) return whole;  // NaN has become 0
    const To saturated = !exact && value >= above ? most : whole;
    return value != value ? To(0) : saturated;
  }
}
}  // namespace detail

/// The one conversion between element types. To bool: x != 0 (NaN is true). To a floating type:
/// rounds to nearest even. From a floating to an integer type: drops the fraction and saturates, so
/// a value beyond the type's range becomes its nearest value, and NaN becomes 0. Between integers:
/// keeps the lowest bits, as in PyTorch.
template <class To, class From>
WEFT_HD To element_cast(From value) {
  if constexpr (std::is_same_v<From, bf16>)
    return element_cast<To>(static_cast<float>(value));
  else if constexpr (std::is_same_v<To, bool>)
    return value != From(0);
  else if constexpr (std::is_same_v<To, bf16>)
    return bf16(static_cast<float>(value));
  else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>)
    return detail::saturate_cast<To>(value);
  else
    return static_cast<To>(value);
}

/// Calls `f.template operator()<T>()` with the C++ type of dtype.
template <class F>
decltype(auto) dispatch_all(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32: return std::forward<F>(f).template operator()<float>();
    case DType::f64: return std::forward<F>(f).template operator()<double>();
    case DType::bf16: return std::forward<F>(f).template operator()<bf16>();
    case DType::i64: return std::forward<F>(f).template operator()<std::int64_t>();
    case DType::i32: return std::forward<F>(f).template operator()<std::int32_t>();
    case DType::u8: return std::forward<F>(f).template operator()<std::uint8_t>();
    case DType::boolean: return std::forward<F>(f).template operator()<bool>();
  }
  WEFT_THROW(Internal, "dispatch", "unknown dtype ", static_cast<int>(dtype));
}

/// Like dispatch_all, but only for f32, f64 and bf16; throws a Dtype error of `op` for others.
template <class F>
decltype(auto) dispatch_floating(DType dtype, const char* op, F&& f) {
  switch (dtype) {
    case DType::f32: return std::forward<F>(f).template operator()<float>();
    case DType::f64: return std::forward<F>(f).template operator()<double>();
    case DType::bf16: return std::forward<F>(f).template operator()<bf16>();
    default: WEFT_THROW(Dtype, op, "needs a floating dtype, got ", to_string(dtype));
  }
}

}  // namespace weft
