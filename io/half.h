// f16, IEEE 754's binary16: a type that files have and weft's tensors do not.
//
//   sign 1 | exponent 5, biased by 15 | fraction 10
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace weft::io::detail {

/// Exact; a NaN keeps its fraction.
inline float from_half(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t rest = half & 0x7fffu;
  if (rest >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  if (rest < 0x400u) {  // below the least normal number: the fraction counts units of 2^-24
    const float value = static_cast<float>(rest) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
  }
  return std::bit_cast<float>(sign | ((rest << 13) + ((127u - 15u) << 23)));
}

/// Rounds to nearest even; from 65520 on infinity, NaN stays NaN.
inline std::uint16_t to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000u);
  const std::uint32_t rest = bits & 0x7fffffffu;
  std::uint32_t half = 0;
  if (rest > 0x7f800000u) {
    half = 0x7e00u | (rest >> 13 & 0x3ffu);
  } else if (rest >= 0x477ff000u) {
    half = 0x7c00u;
  } else if (rest < 0x38800000u) {
    // The sum has a unit of 2^-24 in its last place, so the addition rounds to such units.
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(rest) + 0.5F) - 0x3f000000u;
  } else {
    const std::uint32_t odd = rest >> 13 & 1u;
    half = (rest - ((127u - 15u) << 23) + 0xfffu + odd) >> 13;
  }
  return static_cast<std::uint16_t>(sign | half);
}

/// The same for many numbers; `out` may be unaligned and has twice the bytes.
inline void from_halves(std::span<const std::byte> halves, std::byte* out) {
  for (std::size_t i = 0; i < halves.size(); i += sizeof(std::uint16_t)) {
    std::uint16_t half;
    std::memcpy(&half, halves.data() + i, sizeof(half));
    const float value = from_half(half);
    std::memcpy(out + 2 * i, &value, sizeof(value));
  }
}

inline std::vector<std::uint16_t> to_halves(std::span<const float> values) {
  std::vector<std::uint16_t> halves(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) halves[i] = to_half(values[i]);
  return halves;
}

}  // namespace weft::io::detail
