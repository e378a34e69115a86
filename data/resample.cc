#include "weft/data/resample.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "weft/core/base/simd_level.h"
#include "weft/core/runtime/thread_local.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace weft::data {
namespace {

// Weights are multiples of 2^-22, so that sums of their products with bytes fit in 32 bits.
constexpr int kWeightBits = 32 - 8 - 2;

/// Output point i is the sum of weights[i * taps + k] * input point (first[i] + k), k < count[i].
struct Filter {
  int taps = 0;
  std::vector<int> first;
  std::vector<int> count;
  std::vector<std::int32_t> weights;

  void set(int in, int out) {
    const double scale = static_cast<double>(in) / out;
    const double reach = std::max(scale, 1.0);  // half the width of the triangle
    taps = static_cast<int>(std::ceil(reach)) * 2 + 1;
    const auto n = static_cast<std::size_t>(out);
    first.resize(n);
    count.resize(n);
    weights.assign(n * static_cast<std::size_t>(taps), 0);
    exact_.resize(static_cast<std::size_t>(taps));
    for (int i = 0; i < out; ++i) {
      const double center = (i + 0.5) * scale;
      // Pillow rounds by adding a half and truncating.
      const int begin = std::max(static_cast<int>(center - reach + 0.5), 0);
      const int end = std::min(static_cast<int>(center + reach + 0.5), in);
      double sum = 0;
      for (int k = 0; k < end - begin; ++k) {
        const double distance = std::abs((k + begin - center + 0.5) * (1.0 / reach));
        exact_[static_cast<std::size_t>(k)] = distance < 1 ? 1 - distance : 0;
        sum += exact_[static_cast<std::size_t>(k)];
      }
      first[static_cast<std::size_t>(i)] = begin;
      count[static_cast<std::size_t>(i)] = end - begin;
      std::int32_t* weight = &weights[static_cast<std::size_t>(i) * static_cast<std::size_t>(taps)];
      for (int k = 0; k < end - begin; ++k) {
        const double normalized = exact_[static_cast<std::size_t>(k)] / sum;
        weight[k] = static_cast<std::int32_t>(0.5 + normalized * (1 << kWeightBits));
      }
    }
  }

 private:
  std::vector<double> exact_;
};

std::uint8_t to_byte(std::int32_t sum) {
  return static_cast<std::uint8_t>(std::clamp(sum >> kWeightBits, 0, 255));
}

constexpr std::int32_t kHalf = 1 << (kWeightBits - 1);

template <int kDepth>
void filter_row(const Filter& filter, const std::uint8_t* in, std::uint8_t* out, int width) {
  const std::int32_t* weight = filter.weights.data();
  for (int x = 0; x < width; ++x, weight += filter.taps, out += kDepth) {
    const std::uint8_t* point = in + filter.first[static_cast<std::size_t>(x)] * kDepth;
    const int count = filter.count[static_cast<std::size_t>(x)];
    std::int32_t sums[kDepth];
    for (int c = 0; c < kDepth; ++c) sums[c] = kHalf;
    for (int k = 0; k < count; ++k) {
      for (int c = 0; c < kDepth; ++c) sums[c] += weight[k] * point[k * kDepth + c];
    }
    for (int c = 0; c < kDepth; ++c) out[c] = to_byte(sums[c]);
  }
}

/// Filters rows that are stored one after the other.
template <int kDepth>
void filter_rows_plain(const Filter& filter, const std::uint8_t* in, std::size_t in_row,
                       std::uint8_t* out, std::size_t out_row, std::size_t rows) {
  const int width = static_cast<int>(filter.first.size());
  for (std::size_t i = 0; i < rows; ++i)
    filter_row<kDepth>(filter, in + i * in_row, out + i * out_row, width);
}

#if defined(__x86_64__)
#define WEFT_AVX2 __attribute__((target("avx2")))

WEFT_AVX2 inline std::int32_t load_four(const std::uint8_t* at) {
  std::int32_t bytes;
  std::memcpy(&bytes, at, sizeof bytes);
  return bytes;
}

/// Two points of three channels, and the byte after each, as numbers.
WEFT_AVX2 inline __m256i load_points(const std::uint8_t* one, const std::uint8_t* other) {
  return _mm256_cvtepu8_epi32(
      _mm_insert_epi32(_mm_cvtsi32_si128(load_four(one)), load_four(other), 1));
}

/// The same sums for all channels and four rows at once: otherwise this pass takes longer than
/// decoding.
WEFT_AVX2 void filter_rgb_rows_avx2(const Filter& filter, const std::uint8_t* in,
                                    std::size_t in_row, std::uint8_t* out, std::size_t out_row,
                                    std::size_t rows) {
  constexpr std::size_t kAtOnce = 4;
  std::size_t done = 0;
  // Not the last row: there may be no readable byte after its last point.
  for (; done + kAtOnce < rows; done += kAtOnce, in += kAtOnce * in_row, out += kAtOnce * out_row) {
    const std::int32_t* weight = filter.weights.data();
    for (std::size_t x = 0; x < filter.first.size(); ++x, weight += filter.taps) {
      const std::uint8_t* point = in + filter.first[x] * 3;
      __m256i upper = _mm256_set1_epi32(kHalf), lower = upper;
      for (int k = 0; k < filter.count[x]; ++k, point += 3) {
        const __m256i factor = _mm256_set1_epi32(weight[k]);
        upper =
            _mm256_add_epi32(upper, _mm256_mullo_epi32(factor, load_points(point, point + in_row)));
        lower = _mm256_add_epi32(
            lower, _mm256_mullo_epi32(factor, load_points(point + 2 * in_row, point + 3 * in_row)));
      }
      // Converts to bytes and clips to 0 and 255; rows 0 and 2 are in the lower half, 1 and 3 in
      // the upper.
      const __m256i words = _mm256_packs_epi32(_mm256_srai_epi32(upper, kWeightBits),
                                               _mm256_srai_epi32(lower, kWeightBits));
      const __m256i bytes = _mm256_packus_epi16(words, words);
      alignas(32) std::uint8_t points[32];
      _mm256_store_si256(reinterpret_cast<__m256i*>(points), bytes);
      std::uint8_t* to = out + x * 3;
      std::memcpy(to, points, 3);
      std::memcpy(to + out_row, points + 16, 3);
      std::memcpy(to + 2 * out_row, points + 4, 3);
      std::memcpy(to + 3 * out_row, points + 20, 3);
    }
  }
  filter_rows_plain<3>(filter, in, in_row, out, out_row, rows - done);
}
#endif

auto choose_filter_rgb_rows() {
#if defined(__x86_64__)
  if (simd_level() >= SimdLevel::avx2) return filter_rgb_rows_avx2;
#endif
  return filter_rows_plain<3>;
}

/// One output row from `count` input rows.
[[gnu::always_inline]] inline void mix_rows_any(const std::int32_t* weight, int count,
                                                const std::uint8_t* in, std::size_t row_bytes,
                                                std::uint8_t* out) {
  // Few enough sums for the registers of any machine.
  constexpr std::size_t kAtOnce = 32;
  std::size_t x = 0;
  for (; x + kAtOnce <= row_bytes; x += kAtOnce) {
    std::int32_t sums[kAtOnce];
    for (std::size_t i = 0; i < kAtOnce; ++i) sums[i] = kHalf;
    for (int k = 0; k < count; ++k) {
      const std::uint8_t* row = in + static_cast<std::size_t>(k) * row_bytes + x;
#pragma omp simd
      for (std::size_t i = 0; i < kAtOnce; ++i) sums[i] += weight[k] * row[i];
    }
#pragma omp simd
    for (std::size_t i = 0; i < kAtOnce; ++i) out[x + i] = to_byte(sums[i]);
  }
  for (; x < row_bytes; ++x) {
    std::int32_t sum = kHalf;
    for (int k = 0; k < count; ++k)
      sum += weight[k] * in[static_cast<std::size_t>(k) * row_bytes + x];
    out[x] = to_byte(sum);
  }
}

void mix_rows_plain(const std::int32_t* weight, int count, const std::uint8_t* in,
                    std::size_t row_bytes, std::uint8_t* out) {
  mix_rows_any(weight, count, in, row_bytes, out);
}

#if defined(__x86_64__)
WEFT_AVX2 void mix_rows_avx2(const std::int32_t* weight, int count, const std::uint8_t* in,
                             std::size_t row_bytes, std::uint8_t* out) {
  mix_rows_any(weight, count, in, row_bytes, out);
}
#endif

auto choose_mix_rows() {
#if defined(__x86_64__)
  if (simd_level() >= SimdLevel::avx2) return mix_rows_avx2;
#endif
  return mix_rows_plain;
}

// Memory that a thread keeps for its next picture.
struct Filters {
  Filter rows, columns;
};
constinit ThreadLocal<Filters> filters;

void resample_rows(Picture& picture, int width) {
  if (width == picture.width) return;
  Filter& filter = filters->rows;
  filter.set(picture.width, width);
  const std::size_t in_row = picture.row_bytes();
  const std::size_t out_row = static_cast<std::size_t>(width) * picture.depth;
  const std::size_t rows = static_cast<std::size_t>(picture.planes) * picture.height;
  picture.spare.resize(out_row * rows);
  const auto filter_rgb_rows = choose_filter_rgb_rows();
  const auto filter_rows = picture.depth == 1 ? filter_rows_plain<1> : filter_rgb_rows;
  filter_rows(filter, picture.pixels.data(), in_row, picture.spare.data(), out_row, rows);
  picture.take_spare(picture.height, width);
}

void resample_columns(Picture& picture, int height) {
  if (height == picture.height) return;
  const auto mix_rows = choose_mix_rows();
  Filter& filter = filters->columns;
  filter.set(picture.height, height);
  const std::size_t row = picture.row_bytes();
  const auto planes = static_cast<std::size_t>(picture.planes);
  picture.spare.resize(row * planes * static_cast<std::size_t>(height));
  std::uint8_t* out = picture.spare.data();
  for (std::size_t plane = 0; plane < planes; ++plane) {
    const std::uint8_t* in = picture.pixels.data() + plane * picture.plane_bytes();
    for (std::size_t y = 0; y < static_cast<std::size_t>(height); ++y, out += row) {
      mix_rows(&filter.weights[y * static_cast<std::size_t>(filter.taps)], filter.count[y],
               in + static_cast<std::size_t>(filter.first[y]) * row, row, out);
    }
  }
  picture.take_spare(height, picture.width);
}

}  // namespace

void resample(Picture& picture, int height, int width) {
  // Pillow 13's order, found by trying sizes. Older versions always begin with the rows; where the
  // orders differ, rounding in between changes results by one level.
  const std::int64_t rows_less = picture.height - height, columns_less = picture.width - width;
  if (rows_less > 0 && rows_less > 2 * columns_less) {
    resample_columns(picture, height);
    resample_rows(picture, width);
  } else {
    resample_rows(picture, width);
    resample_columns(picture, height);
  }
}

}  // namespace weft::data
