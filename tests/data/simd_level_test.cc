// data/'s vector code gives the same bits as its scalar code.
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "weft/core/base/simd_level.h"
#include "weft/data/pixels.h"
#include "weft/data/resample.h"

namespace weft::data {
namespace {

/// Bytes without a regular order.
std::vector<std::uint8_t> bytes(std::size_t n) {
  std::vector<std::uint8_t> result(n);
  std::uint32_t state = 1;
  for (auto& byte : result) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<std::uint8_t>(state >> 24);
  }
  return result;
}

/// Checks that f() gives equal results at each level of this machine.
template <class F>
void expect_same_at_every_level(F&& f) {
  set_simd_level(SimdLevel::baseline);
  const auto want = f();
  for (const SimdLevel level : {SimdLevel::avx2, SimdLevel::avx512}) {
    set_simd_level(level);
    EXPECT_TRUE(f() == want) << to_string(level);
  }
}

template <class T>
std::vector<T> scaled(const std::vector<std::uint8_t>& in, float mean, float std) {
  std::vector<T> out(in.size());
  scale_pixels(in.data(), out.data(), static_cast<std::int64_t>(in.size()), mean, std);
  return out;
}

TEST(DataSimdLevels, ScaledPixels) {
  std::vector<std::uint8_t> in(256);
  std::iota(in.begin(), in.end(), 0);
  in.resize(261, 7);  // not a multiple of the vector length
  for (const auto& [mean, std] : {std::pair(0.0f, 1.0f), std::pair(0.2860f, 0.3530f)}) {
    expect_same_at_every_level([&] { return scaled<float>(in, mean, std); });
    expect_same_at_every_level([&] { return scaled<double>(in, mean, std); });
  }
}

TEST(DataSimdLevels, SplitChannels) {
  for (const std::int64_t n : {1, 31, 1003}) {
    const auto in = bytes(static_cast<std::size_t>(3 * n));
    expect_same_at_every_level([&] {
      std::vector<std::uint8_t> planes(in.size());
      split_channels(in.data(), planes.data(), n, 3);
      return planes;
    });
  }
}

TEST(DataSimdLevels, ResampledPictures) {
  for (const auto& [height, width] : {std::pair(13, 17), std::pair(40, 9), std::pair(61, 83)}) {
    expect_same_at_every_level([&] {
      Picture picture{.height = 37, .width = 53, .pixels = bytes(37 * 53 * 3)};
      resample(picture, height, width);
      return picture.pixels;
    });
  }
}

}  // namespace
}  // namespace weft::data
