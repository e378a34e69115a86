#include "weft/data/pixels.h"

#include "weft/core/base/simd_level.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace weft::data {
namespace {

template <class T>
using Scale = void (*)(const std::uint8_t* in, T* out, std::int64_t n, float mean, float std);

template <class T>
void scale_plain(const std::uint8_t* in, T* out, std::int64_t n, float mean, float std) {
  for (std::int64_t i = 0; i < n; ++i) {
    out[i] = (static_cast<float>(in[i]) / 255.0f - mean) / std;
  }
}

#if defined(__x86_64__)
#define WEFT_AVX2 __attribute__((target("avx2,fma")))

WEFT_AVX2 inline void store(float* out, __m256 values) { _mm256_storeu_ps(out, values); }
WEFT_AVX2 inline void store(double* out, __m256 values) {
  _mm256_storeu_pd(out, _mm256_cvtps_pd(_mm256_castps256_ps128(values)));
  _mm256_storeu_pd(out + 4, _mm256_cvtps_pd(_mm256_extractf128_ps(values, 1)));
}

// A loader shares the cores with the training step; for a small network the plain loop would take a
// tenth of the step. Instead of a division by 255, one Newton step on the product with the
// reciprocal gives the correctly rounded quotient for all 256 values (mnist_test.cc compares).
template <class T, bool kNormalize>
WEFT_AVX2 void scale_avx2(const std::uint8_t* in, T* out, std::int64_t n, float mean, float std) {
  constexpr std::int64_t kLanes = 8;
  const __m256 inverse = _mm256_set1_ps(1.0f / 255.0f), divisor = _mm256_set1_ps(255.0f);
  const __m256 means = _mm256_set1_ps(mean), stds = _mm256_set1_ps(std);
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const __m128i pixels = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(in + i));
    const __m256 value = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(pixels));
    const __m256 quotient = _mm256_mul_ps(value, inverse);
    const __m256 rest = _mm256_fnmadd_ps(quotient, divisor, value);
    __m256 scaled = _mm256_fmadd_ps(rest, inverse, quotient);
    if constexpr (kNormalize) scaled = _mm256_div_ps(_mm256_sub_ps(scaled, means), stds);
    store(out + i, scaled);
  }
  scale_plain(in + i, out + i, n - i, mean, std);
}
#endif

// One loop over all channels, which the compiler turns into shuffles.
[[gnu::always_inline]] inline void split_rgb_any(const std::uint8_t* in, std::uint8_t* planes,
                                                 std::int64_t n) {
  std::uint8_t* const second = planes + n;
  std::uint8_t* const third = second + n;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    planes[i] = in[3 * i];
    second[i] = in[3 * i + 1];
    third[i] = in[3 * i + 2];
  }
}

void split_rgb_plain(const std::uint8_t* in, std::uint8_t* planes, std::int64_t n) {
  split_rgb_any(in, planes, n);
}

#if defined(__x86_64__)
WEFT_AVX2 void split_rgb_avx2(const std::uint8_t* in, std::uint8_t* planes, std::int64_t n) {
  split_rgb_any(in, planes, n);
}
#endif

auto choose_split_rgb() {
#if defined(__x86_64__)
  if (simd_level() >= SimdLevel::avx2) return split_rgb_avx2;
#endif
  return split_rgb_plain;
}

template <class T, bool kNormalize>
Scale<T> choose_scale() {
#if defined(__x86_64__)
  if (simd_level() >= SimdLevel::avx2) {
    return scale_avx2<T, kNormalize>;
  }
#endif
  return scale_plain<T>;
}

}  // namespace

template <class T>
void scale_pixels(const std::uint8_t* in, T* out, std::int64_t n, float mean, float std) {
  (mean == 0 && std == 1 ? choose_scale<T, false>() : choose_scale<T, true>())(in, out, n, mean,
                                                                               std);
}

void split_channels(const std::uint8_t* in, std::uint8_t* planes, std::int64_t n, int depth) {
  if (depth == 3) return choose_split_rgb()(in, planes, n);
  for (int c = 0; c < depth; ++c, planes += n) {
    for (std::int64_t i = 0; i < n; ++i) planes[i] = in[i * depth + c];
  }
}

template void scale_pixels(const std::uint8_t*, float*, std::int64_t, float, float);
template void scale_pixels(const std::uint8_t*, double*, std::int64_t, float, float);

}  // namespace weft::data
