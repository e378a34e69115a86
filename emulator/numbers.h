// Elements of the operands of libraries.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace emulator {

enum class Number { none, f64, f32, bf16 };

inline int size_of(Number type) {
  switch (type) {
    case Number::f64: return 8;
    case Number::f32: return 4;
    case Number::bf16: return 2;
    default: return 0;
  }
}

/// Rounded to nearest even at 10 bits of fraction, as tensor cores read f32.
inline float tf32(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7f800000u) != 0x7f800000u) bits = (bits + 0x0fffu + (bits >> 13 & 1)) & ~0x1fffu;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline double load(Number type, const void* p, std::int64_t i) {
  if (type == Number::f64) return static_cast<const double*>(p)[i];
  if (type == Number::f32) return static_cast<const float*>(p)[i];
  const std::uint32_t bits = std::uint32_t{static_cast<const std::uint16_t*>(p)[i]} << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline void store(Number type, void* p, std::int64_t i, double value) {
  if (type == Number::f64) {
    static_cast<double*>(p)[i] = value;
    return;
  }
  const auto rounded = static_cast<float>(value);
  if (type == Number::f32) {
    static_cast<float*>(p)[i] = rounded;
    return;
  }
  std::uint32_t bits;
  std::memcpy(&bits, &rounded, 4);
  bits = std::isnan(rounded) ? bits >> 16 | 0x40 : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
  static_cast<std::uint16_t*>(p)[i] = static_cast<std::uint16_t>(bits);
}

inline bool aligned(const void* p, std::uint32_t to) {
  return reinterpret_cast<std::uintptr_t>(p) % to == 0;
}

}  // namespace emulator
