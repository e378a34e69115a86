// exp, log, sigmoid, tanh, erf and log_sigmoid for f32 without branches or calls, so that loops
// over them vectorise. Largest error over all floats, against the f64 functions, in units of the
// last place: exp 1.0, log 0.9, sigmoid 1.9, tanh 1.3, erf 1.2, log_sigmoid 1.9 (with or without
// FMA). Infinities, NaN and denormals give the results of libm. Only for sources built by
// weft_simd_library: WEFT_SIMD keeps the copies of the instruction sets apart.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

namespace weft::cpu::WEFT_SIMD {

/// a * b + c, with one rounding if the processor has FMA. Without it, std::fma would be a call.
inline float madd(float a, float b, float c) {
#if defined(__FMA__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

inline float power_of_two(std::int32_t n) {  // -126 <= n <= 127
  return std::bit_cast<float>(static_cast<std::uint32_t>(n + 127) << 23);
}

inline float exp_f32(float x) {
  // Beyond these limits the result is 0 or infinity. NaN fails both comparisons and stays NaN.
  x = x > 89.0f ? 89.0f : x;
  x = x < -104.0f ? -104.0f : x;
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits of the sum.
  constexpr float kRound = 12582912.0f;
  const float shifted = madd(x, 1.44269504088896341f, kRound);
  const auto n = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(shifted) -
                                           std::bit_cast<std::uint32_t>(kRound));
  const float whole = shifted - kRound;
  // ln 2 in two parts; the first has few bits, so its product is exact.
  const float r = madd(whole, 2.12194440e-4f, madd(whole, -0.693359375f, x));
  float p = madd(1.9875691500e-4f, r, 1.3981999507e-3f);
  p = madd(p, r, 8.3334519073e-3f);
  p = madd(p, r, 4.1665795894e-2f);
  p = madd(p, r, 1.6666665459e-1f);
  p = madd(p, r, 5.0000001201e-1f);
  const float e = madd(p, r * r, r) + 1.0f;
  // Two factors, to reach denormal results and 2^128. For NaN, n is arbitrary, but e is NaN.
  const std::int32_t half = n >> 1;
  return e * power_of_two(half) * power_of_two(n - half);
}

inline float log_f32(float x) {
  // Denormals are multiplied by 2^23 first.
  const bool tiny = x < std::numeric_limits<float>::min();
  const float scaled = tiny ? x * 8388608.0f : x;
  // x = 2^k m, sqrt(1/2) <= m < sqrt(2)
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(scaled) + (0x3f800000u - 0x3f3504f3u);
  const float k =
      static_cast<float>(static_cast<std::int32_t>(bits >> 23) - 127) - (tiny ? 23.0f : 0.0f);
  const float m = std::bit_cast<float>((bits & 0x007fffffu) + 0x3f3504f3u);
  // log m = 2 atanh(s), s = f / (2 + f)
  const float f = m - 1.0f;
  const float s = f / (2.0f + f);
  const float z = s * s, w = z * z;
  const float odd = w * madd(w, 0.24279078841f, 0.40000972152f);
  const float even = z * madd(w, 0.28498786688f, 0.66666662693f);
  const float half_square = 0.5f * f * f;
  const float tail = madd(s, half_square + (odd + even), k * 9.0580006145e-6f);
  float y = madd(k, 0.69313812256f, tail - half_square + f);
  y = x == std::numeric_limits<float>::infinity() ? x : y;
  y = x == 0.0f ? -std::numeric_limits<float>::infinity() : y;
  // Negative or NaN.
  return x >= 0.0f ? y : std::numeric_limits<float>::quiet_NaN();
}

inline float sigmoid_f32(float x) {
  // exp of a negative number cannot overflow, and it keeps small results accurate. From x = 30 on
  // the result is 1, and a denormal e would only cost time.
  const float e = exp_f32(x > 30.0f ? -30.0f : -std::fabs(x));
  const float sum = 1.0f + e;
  const float y = (x >= 0.0f ? 1.0f : e) / sum;
  // Corrects the rounding error of the sum to first order; 1 / sum is y or 1 - y.
  const float lost = e - (sum - 1.0f);
  return madd(-y, lost * (x >= 0.0f ? y : 1.0f - y), y);
}

inline float tanh_f32(float x) {
  const float a = std::fabs(x);
  const float z = x * x;
  float p = madd(-5.70498872745e-3f, z, 2.06390887954e-2f);
  p = madd(p, z, -5.37397155531e-2f);
  p = madd(p, z, 1.33314422036e-1f);
  p = madd(p, z, -3.33332819422e-1f);
  const float small = madd(p * z, a, a);
  const float large = 1.0f - 2.0f / (exp_f32(a + a) + 1.0f);
  return std::copysign(a < 0.625f ? small : large, x);
}

inline float erf_f32(float x) {
  const float a = std::fabs(x);
  const float z = x * x;
  float p = madd(-5.96761703e-4f, z, 4.99119423e-3f);
  p = madd(p, z, -2.67681349e-2f);
  p = madd(p, z, 1.12819925e-1f);
  p = madd(p, z, -3.76125336e-1f);
  p = madd(p, z, 1.28379166e-1f);
  const float small = madd(p, x, x);
  // 1 - exp of a polynomial in |x|; from |x| = 4 on that is 1.
  const float t = a > 4.0f ? 4.0f : a;
  const float y = t * t;
  float q = madd(-1.72853470e-5f, t, 3.83197126e-4f);
  q = madd(q, y, madd(-3.88396438e-3f, t, 2.42546219e-2f));
  q = madd(q, t, -1.06777877e-1f);
  q = madd(q, t, -6.34846687e-1f);
  q = madd(q, t, -1.28717512e-1f);
  q = madd(q, t, -t);
  const float large = std::copysign(1.0f - exp_f32(q), x);
  return a > 0.927734375f ? large : small;
}

/// The standard normal distribution function: the probability that N(0, 1) <= x.
inline float normal_cdf_f32(float x) {
  return 0.5f * (1.0f + erf_f32(x * static_cast<float>(std::numbers::sqrt2 / 2)));
}

inline float log_sigmoid_f32(float x) {
  // log(1 + e), with the rounding error of the sum corrected to first order.
  const float e = exp_f32(-std::fabs(x));
  const float sum = 1.0f + e;
  const float lost = e - (sum - 1.0f);
  return (x < 0.0f ? x : 0.0f) - (log_f32(sum) + lost / sum);
}

}  // namespace weft::cpu::WEFT_SIMD
