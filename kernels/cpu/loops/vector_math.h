// Functions of f32, and exp of f64, without branches or calls, so that loops over them vectorise.
// Largest error over all floats, against the f64 functions, in units of the last place: exp 1.1,
// log 0.9, sigmoid 2.0, tanh 1.3, erf 1.1, log_sigmoid 1.9, sin and cos 0.51, pow 0.54; exp_f64 1.1
// (with or without FMA). Infinities, NaN and denormals give the results of libm. Only for sources
// built by weft_simd_library: WEFT_SIMD keeps the copies of the instruction sets apart.
//
// Arguments are reduced as in W. Cody and W. Waite, "Software Manual for the Elementary Functions"
// (1980): a multiple of a constant in two parts is subtracted, of which the first has so few bits
// that its product is exact. The coefficients of polynomials are near-minimax.
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

inline double madd(double a, double b, double c) {
#if defined(__FMA__)
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}

/// c[0] + c[1] x + c[2] x^2 + .., as a polynomial in x^2 whose coefficients are c[i] + c[i + 1] x:
/// half as many operations depend on each other as in Horner's scheme, which is what limits loops.
template <class T, std::size_t n>
inline T polynomial(T x, const T (&c)[n]) {
  const T square = x * x;
  T sum = n % 2 == 0 ? madd(c[n - 1], x, c[n - 2]) : c[n - 1];
#pragma GCC unroll 8
  for (int i = n - (n % 2 == 0 ? 4 : 3); i >= 0; i -= 2) {
    sum = madd(sum, square, madd(c[i + 1], x, c[i]));
  }
  return sum;
}

// Adding 1.5 * 2^23, or 1.5 * 2^52 in f64, rounds to an integer and leaves it in the low bits of
// the sum.
inline constexpr float kRoundF32 = 0x1.8p23f;
inline constexpr double kRoundF64 = 0x1.8p52;

/// exp(x - whole ln 2) - 1, where whole is the integer next to x / ln 2.
inline float expm1_of_rest(float x, float whole) {
  const float r = madd(whole, 2.12194440e-4f, madd(whole, -0.693359375f, x));
  const float p = polynomial(r, {5.0000001201e-1f, 1.6666665459e-1f, 4.1665795894e-2f,
                                 8.3334519073e-3f, 1.3981999507e-3f, 1.9875691500e-4f});
  return madd(p, r * r, r);
}

inline float exp_f32(float x) {
  // Beyond these limits the result is 0 or infinity. NaN fails both comparisons and stays NaN.
  x = x > 89.0f ? 89.0f : x;
  x = x < -104.0f ? -104.0f : x;
  const float shifted = madd(x, std::numbers::log2e_v<float>, kRoundF32);
  const float e = expm1_of_rest(x, shifted - kRoundF32);
  // Two factors, to reach denormal results and 2^128. For NaN, n is arbitrary, but e is NaN.
  const std::uint32_t n =
      std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(kRoundF32) + 2 * 127;
  const std::uint32_t half = n >> 1;
  const float power = std::bit_cast<float>(half << 23);
  return madd(e, power, power) * std::bit_cast<float>((n - half) << 23);
}

/// exp(x) for -104.9 < x <= 0 and NaN, in fewer instructions.
inline float exp_down_f32(float x) {
  // 2^(n + 24) is not denormal, so the shift drops all bits but those of the exponent.
  constexpr float kRound = kRoundF32 + 127 + 24;
  const float shifted = madd(x, std::numbers::log2e_v<float>, kRound);
  const float power = std::bit_cast<float>(std::bit_cast<std::uint32_t>(shifted) << 23) * 0x1p-24f;
  return madd(expm1_of_rest(x, shifted - kRound), power, power);
}

/// exp(x) for x <= 0 and NaN.
inline float exp_negative_f32(float x) { return exp_down_f32(x < -104.0f ? -104.0f : x); }

inline double exp_f64(double x) {
  x = x > 710.0 ? 710.0 : x;
  x = x < -746.0 ? -746.0 : x;
  const double shifted = madd(x, std::numbers::log2e, kRoundF64);
  const double whole = shifted - kRoundF64;
  const double r =
      madd(whole, -1.90821492927058770002e-10, madd(whole, -6.93147180369123816490e-1, x));
  const double p =
      polynomial(r, {5.0000000000000130e-1, 1.6666666666666692e-1, 4.1666666666513311e-2,
                     8.3333333333112231e-3, 1.3888888947549711e-3, 1.9841269909296621e-4,
                     2.4801489396085886e-5, 2.7557223123766208e-6, 2.7631475120155075e-7,
                     2.5115798813667502e-8});
  const double e = madd(p, r * r, r);
  const std::uint64_t n =
      std::bit_cast<std::uint64_t>(shifted) - std::bit_cast<std::uint64_t>(kRoundF64) + 2 * 1023;
  const std::uint64_t half = n >> 1;
  const double power = std::bit_cast<double>(half << 52);
  return madd(e, power, power) * std::bit_cast<double>((n - half) << 52);
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
  // NaN for negative x and NaN.
  return x >= 0.0f ? y : std::numeric_limits<float>::quiet_NaN();
}

inline float sigmoid_f32(float x) {
  // exp of a negative number cannot overflow, and it keeps small results accurate.
  const float e = exp_negative_f32(-std::fabs(x));
  const float y = 1.0f / (1.0f + e);
  // Newton's step corrects the rounding of the sum and of the quotient; 1 - y is exact.
  const float residue = madd(-e, y, 1.0f - y);
  const float near = x < 0.0f ? e * y : y;
  return madd(near, residue, near);
}

inline float tanh_f32(float x) {
  const float a = std::fabs(x);
  const float z = x * x;
  const float p = polynomial(z, {-3.33332819422e-1f, 1.33314422036e-1f, -5.37397155531e-2f,
                                 2.06390887954e-2f, -5.70498872745e-3f});
  const float small = madd(p * z, a, a);
  const float large = 1.0f - 2.0f / (exp_f32(a + a) + 1.0f);
  return std::copysign(a < 0.625f ? small : large, x);
}

inline float erf_f32(float x) {
  const float a = std::fabs(x);
  const float z = x * x;
  const float p = polynomial(z, {1.28379166e-1f, -3.76125336e-1f, 1.12819925e-1f, -2.67681349e-2f,
                                 4.99119423e-3f, -5.96761703e-4f});
  const float small = madd(p, x, x);
  // 1 - exp of a polynomial in |x|; from |x| = 4 on the result is 1.
  const float t = a > 4.0f ? 4.0f : a;
  const float y = t * t;
  float q = madd(-1.72853470e-5f, t, 3.83197126e-4f);
  q = madd(q, y, madd(-3.88396438e-3f, t, 2.42546219e-2f));
  q = madd(q, t, -1.06777877e-1f);
  q = madd(q, t, -6.34846687e-1f);
  q = madd(q, t, -1.28717512e-1f);
  q = madd(q, t, -t);
  const float large = std::copysign(1.0f - exp_down_f32(q), x);
  return a > 0.927734375f ? large : small;
}

/// The standard normal distribution function: the probability that N(0, 1) <= x. Its error is up
/// to about 2^-23, so small results have fewer exact places. 1 for NaN.
inline float normal_cdf_f32(float x) {
  // |x|, at most 10.21, as an integer: in this order the limit takes one instruction.
  constexpr auto kMost = std::bit_cast<std::int32_t>(10.21f);
  const std::int32_t bits = std::bit_cast<std::int32_t>(x) & 0x7fffffff;
  const float z = std::bit_cast<float>(bits < kMost ? bits : kMost);
  // Of -|x|: 2 to the power of a polynomial q. At the limit its integer is -127, whose power of 2
  // has the bits of 0.
  const float q =
      polynomial(z, {-0.999999940f, -1.15110695f, -0.459193051f, -0.0525464527f, 7.14281527e-3f,
                     -2.02508788e-4f, -1.57265502e-4f, 3.29651702e-5f, -2.27563896e-6f});
  constexpr float kRound = kRoundF32 + 127;
  const float shifted = q + kRound;
  const float f = q - (shifted - kRound);
  const float power = std::bit_cast<float>(std::bit_cast<std::uint32_t>(shifted) << 23);
  const float tail = power * polynomial(f, {1.0f, 0.693147182f, 0.240226507f, 0.0555035621f,
                                            9.61805508e-3f, 1.33913278e-3f, 1.54619120e-4f});
  return x < 0.0f ? tail : 1.0f - tail;
}

inline float log_sigmoid_f32(float x) {
  const float e = exp_negative_f32(-std::fabs(x));
  // log(1 + e) = e - e^2 p(e). Without its first term p is small, and so are its
  // rounding errors.
  const float rest =
      polynomial(e, {0.333330929f, -0.249933124f, 0.199263304f, -0.162283123f, 0.126792982f,
                     -0.0859131515f, 0.0442929491f, -0.0146793425f, 0.00227575633f});
  const float p = madd(-rest, e, 0.5f);
  return madd(p, e * e, x < 0.0f ? x : 0.0f) - e;
}

/// sin(r + n pi), with n's last bit in the last bit of `odd`; |r| <= pi / 2.
inline float sin_of_rest(double r, double odd) {
  const double z = r * r;
  const double p =
      polynomial(z, {-1.6666666666504343e-1, 8.3333333210753065e-3, -1.9841266727805176e-4,
                     2.7556952972217847e-6, -2.5030192151839696e-8, 1.5409467015846521e-10});
  const double y = r * madd(p, z, 1.0);
  return static_cast<float>(std::bit_cast<double>(std::bit_cast<std::uint64_t>(y) ^
                                                  std::bit_cast<std::uint64_t>(odd) << 63));
}

/// sin_f32 and cos_f32 need |x| <= kMostAngle (or NaN): then multiples of pi's first part are exact
/// in f64.
inline constexpr float kMostAngle = 0x1p20f;
inline constexpr double kPiFirst = 3.14159265346825122833252, kPiRest = 1.215420101301238520295e-10;

inline float sin_f32(float x) {
  const double wide = x;
  const double shifted = madd(wide, std::numbers::inv_pi, kRoundF64);
  const double n = shifted - kRoundF64;
  return sin_of_rest(madd(n, -kPiRest, madd(n, -kPiFirst, wide)), shifted);
}

inline float cos_f32(float x) {
  // cos x = -sin(x - (n + 1/2) pi) for even n
  constexpr double kRound = kRoundF64 + 1;
  const double wide = x;
  const double shifted = madd(wide, std::numbers::inv_pi, -0.5) + kRound;
  const double n = shifted - kRound + 0.5;
  return sin_of_rest(madd(n, -kPiRest, madd(n, -kPiFirst, wide)), shifted);
}

/// The binary logarithm of a finite positive f32, in f64.
inline double log2_of_f32(double a) {
  // a = 2^k m, sqrt(1/2) <= m < sqrt(2). k is placed in the low bits of 2^52.
  const std::uint64_t bits =
      std::bit_cast<std::uint64_t>(a) + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
  const double k = std::bit_cast<double>(bits >> 52 | 0x4330000000000000u) - (0x1p52 + 1023);
  const double m = std::bit_cast<double>((bits & 0x000fffffffffffffu) + 0x3fe6a09e667f3bcdu);
  // log2 m = 2 / ln 2 atanh(s)
  const double s = (m - 1.0) / (m + 1.0);
  const double p = polynomial(
      s * s, {2.8853900817779273, 0.96179669392431859, 0.57707801725266078, 0.41219840112996327,
              0.32061644833149820, 0.26144243123637876, 0.24293667878928560});
  return madd(p, s, k);
}

/// The float next to the natural logarithm of a finite positive x.
inline float nearest_log_f32(float x) {
  return static_cast<float>(std::numbers::ln2 * log2_of_f32(x));
}

/// x^y as C's pow. In f64, where an error of the logarithm does not grow to one of the result.
inline float pow_f32(float x, float y) {
  // The largest of these powers of a float other than 0 and +-1 over- or underflow, and are even.
  constexpr double kMost = 0x1p40;
  const double wide_x = x, wide_y = y;
  double by = wide_y;
  by = by > kMost ? kMost : by;
  by = by < -kMost ? -kMost : by;
  const double a = std::fabs(wide_x);
  double log2 = log2_of_f32(a);
  log2 = a == 0.0 ? -std::numeric_limits<double>::infinity() : log2;
  log2 = a < std::numeric_limits<double>::infinity() ? log2 : a;  // and NaN
  // 2^t; conversion to f32 rounds denormal results and overflows.
  double t = by * log2;
  t = t > 200.0 ? 200.0 : t;
  t = t < -200.0 ? -200.0 : t;
  constexpr double kRound = kRoundF64 + 1023;
  const double shifted = t + kRound;
  const double f = t - (shifted - kRound);
  double e = polynomial(f, {1.0, 6.9314720291e-1, 2.4022647922e-1, 5.5503323955e-2, 9.6184362068e-3,
                            1.3398896817e-3, 1.5353697480e-4});
  e *= std::bit_cast<double>(std::bit_cast<std::uint64_t>(shifted) << 52);
  // The sign of x counts for odd y. For y that is no integer, powers of finite x < 0 do not exist.
  const double whole = by + kRoundF64;
  const std::uint64_t sign =
      std::bit_cast<std::uint64_t>(wide_x) & std::bit_cast<std::uint64_t>(whole) << 63;
  double other = wide_x < 0.0 ? std::numeric_limits<double>::quiet_NaN() : e;
  other = a == std::numeric_limits<double>::infinity() ? e : other;
  e = std::bit_cast<double>(std::bit_cast<std::uint64_t>(e) ^ sign);
  e = whole - kRoundF64 == by ? e : other;
  e = wide_x == 1.0 ? 1.0 : e;
  e = wide_y == 0.0 ? 1.0 : e;
  return static_cast<float>(e);
}

// Overloads by the type of the computation.
inline float logarithm(float x) { return log_f32(x); }
inline double logarithm(double x) { return std::log(x); }
inline float power(float x, float y) { return pow_f32(x, y); }
inline double power(double x, double y) { return std::pow(x, y); }
/// exp(x) for x <= 0 and NaN.
inline float exponential_negative(float x) { return exp_negative_f32(x); }
inline double exponential_negative(double x) { return exp_f64(x); }

}  // namespace weft::cpu::WEFT_SIMD
