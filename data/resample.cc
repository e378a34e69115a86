#include "weft/data/resample.h"

#include <algorithm>
#include <cmath>

namespace weft::data {
namespace {

// Weights are multiples of 2^-22: the products with bytes, summed, still fit 32 bits.
constexpr int kWeightBits = 32 - 8 - 2;

/// Output point i is the sum of weights[i * taps + k] * input point (first[i] + k), k < count[i].
struct Filter {
  int taps = 0;
  std::vector<int> first;
  std::vector<int> count;
  std::vector<std::int32_t> weights;

  void set(int in, int out) {
    const double scale = static_cast<double>(in) / out;
    const double reach = std::max(scale, 1.0);  // of the triangle, to each side
    taps = static_cast<int>(std::ceil(reach)) * 2 + 1;
    const auto n = static_cast<std::size_t>(out);
    first.resize(n);
    count.resize(n);
    weights.assign(n * static_cast<std::size_t>(taps), 0);
    exact_.resize(static_cast<std::size_t>(taps));
    for (int i = 0; i < out; ++i) {
      const double center = (i + 0.5) * scale;
      // Pillow rounds by adding a half and cutting off.
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

/// One output row from `count` input rows.
[[gnu::always_inline]] inline void mix_rows_any(const std::int32_t* weight, int count,
                                                const std::uint8_t* in, std::size_t row_bytes,
                                                std::uint8_t* out) {
  // Few enough sums to stay in the registers of any machine.
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
__attribute__((target("avx2"))) void mix_rows_avx2(const std::int32_t* weight, int count,
                                                   const std::uint8_t* in, std::size_t row_bytes,
                                                   std::uint8_t* out) {
  mix_rows_any(weight, count, in, row_bytes, out);
}
#endif

auto choose_mix_rows() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return mix_rows_avx2;
#endif
  return mix_rows_plain;
}

void resample_rows(Picture& picture, int width) {
  if (width == picture.width) return;
  thread_local Filter filter;
  filter.set(picture.width, width);
  const std::size_t in_row = picture.row_bytes();
  const std::size_t out_row = static_cast<std::size_t>(width) * picture.depth;
  const std::size_t rows = static_cast<std::size_t>(picture.planes) * picture.height;
  picture.spare.resize(out_row * rows);
  const auto filter_rows = picture.depth == 1 ? filter_row<1> : filter_row<3>;
  for (std::size_t i = 0; i < rows; ++i) {
    filter_rows(filter, picture.pixels.data() + i * in_row, picture.spare.data() + i * out_row,
                width);
  }
  picture.take_spare(picture.height, width);
}

void resample_columns(Picture& picture, int height) {
  if (height == picture.height) return;
  static const auto mix_rows = choose_mix_rows();
  thread_local Filter filter;
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
  // Pillow 13's order, found by trying out sizes. Older ones always begin with the rows; where that
  // is the other way round, rounding in between makes a level's difference.
  const int rows_less = picture.height - height, columns_less = picture.width - width;
  if (rows_less > 0 && rows_less > 2 * columns_less) {
    resample_columns(picture, height);
    resample_rows(picture, width);
  } else {
    resample_rows(picture, width);
    resample_columns(picture, height);
  }
}

}  // namespace weft::data
