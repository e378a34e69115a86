// Kernel tests run on every target: the definitions, each instruction set for which the CPU backend
// has loops, and CUDA. They use three threads on every machine, so that teams divide ranges at odd
// places.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "weft/core/base/simd_level.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/tests/every_case.h"
#include "weft/tests/kernels/device_buffers.h"

namespace weft::testing {

struct Target {
  DeviceType device = DeviceType::cpu;
  SimdLevel level = SimdLevel::baseline;
  bool reference = false;
};

inline std::string to_string(const Target& t) {
  if (t.device == DeviceType::cuda) return "cuda";
  if (t.reference) return "reference";
  switch (t.level) {
    case SimdLevel::baseline: return "cpu_baseline";
    case SimdLevel::avx2: return "cpu_avx2";
    default: return "cpu_avx512";
  }
}
inline std::ostream& operator<<(std::ostream& out, const Target& t) { return out << to_string(t); }

class TargetTest : public ::testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    if (device_count(GetParam().device) == 0) GTEST_SKIP() << "no " << device() << " here";
    if (GetParam().device == DeviceType::cpu) {
      if (GetParam().level > best_simd_level()) {
        GTEST_SKIP() << "this processor lacks " << to_string(GetParam());
      }
      set_simd_level(GetParam().level);
    }
    stream = backend(device()).runtime->default_stream(0);
  }
  void TearDown() override { set_simd_level(best_simd_level()); }

  Device device() const { return Device(GetParam().device, 0); }
  const KernelTable& kernels() const {
    if (GetParam().reference) return reference_kernels();
    return device().is_cpu() ? cpu_backend()->kernels : backend(device()).kernels;
  }
  void synchronize() const { backend(device()).runtime->synchronize(stream); }

  Stream stream;

 private:
  Scoped<int> threads_{&ThreadState::num_threads, 3};
};

#define WEFT_ON_EVERY_TARGET(Suite)                                                      \
  INSTANTIATE_TEST_SUITE_P(                                                              \
      Targets, Suite,                                                                    \
      ::testing::Values(                                                                 \
          ::weft::testing::Target{.reference = true},                                    \
          ::weft::testing::Target{::weft::DeviceType::cpu, ::weft::SimdLevel::baseline}, \
          ::weft::testing::Target{::weft::DeviceType::cpu, ::weft::SimdLevel::avx2},     \
          ::weft::testing::Target{::weft::DeviceType::cpu, ::weft::SimdLevel::avx512},   \
          ::weft::testing::Target{::weft::DeviceType::cuda}),                            \
      [](const auto& info) { return ::weft::testing::to_string(info.param); })

inline constexpr DType kFloating[] = {DType::f32, DType::f64, DType::bf16};
inline constexpr DType kIntegers[] = {DType::i64, DType::i32, DType::u8, DType::boolean};
inline constexpr DType kAllDTypes[] = {DType::f32, DType::f64, DType::bf16,   DType::i64,
                                       DType::i32, DType::u8,  DType::boolean};

/// The rounding error of the type in which a dtype's values are computed; 0 for integers.
inline double compute_roundoff(DType dtype) {
  return dtype == DType::f64 ? 0x1p-53 : is_floating(dtype) ? 0x1p-24 : 0;
}

/// Values for the tests: small, and integers that every type represents exactly.
inline std::vector<double> values_for(DType dtype, std::int64_t n, double low, double high,
                                      std::uint64_t seed) {
  if (dtype == DType::u8) low = 0;
  if (dtype == DType::boolean) low = 0, high = 2;
  std::vector<double> v = random_values(n, low, high, seed);
  if (!is_floating(dtype)) {
    for (double& x : v) x = std::floor(x);
  }
  return rounded(dtype, std::move(v));
}

/// Compares got with want element by element; `bound(want)` is the allowed difference. NaN equals
/// NaN, infinities must be equal.
template <class Bound>
void expect_close(const std::vector<double>& got, const std::vector<double>& want, Bound&& bound) {
  ASSERT_EQ(got.size(), want.size());
  int shown = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i]))) continue;
    if (std::isfinite(got[i]) && std::abs(got[i] - want[i]) <= bound(want[i])) continue;
    ADD_FAILURE() << "element " << i << ": got " << got[i] << ", expected " << want[i] << " within "
                  << bound(want[i]);
    if (++shown == 5) return;
  }
}

inline void expect_equal(const std::vector<double>& got, const std::vector<double>& want) {
  expect_close(got, want, [](double) { return 0.0; });
}

/// One shape and the strides of up to four operands, number 0 being the output.
struct Layout {
  const char* name;
  Shape shape;
  Strides strides[4];
};

/// All kinds of layouts of operands: empty, scalar, odd lengths, dense in any order, with gaps,
/// transposed against each other, broadcast, and longer than one thread's part.
inline const std::vector<Layout>& layouts() {
  const auto all = [](const char* name, Shape shape, Strides s) {
    return Layout{name, shape, {s, s, s, s}};
  };
  const auto dense = [&](const char* name, Shape shape) {
    return all(name, shape, contiguous_strides(shape));
  };
  const Shape image{3, 5, 4, 6};
  const Strides nhwc = channels_last_strides(image), nchw = contiguous_strides(image);
  static const std::vector<Layout> all_layouts{
      dense("scalar", {}),
      dense("empty", {0}),
      {"empty in the middle", {3, 0, 2}, {{0, 2, 1}, {2, 6, 1}, {0, 0, 0}, {1, 1, 1}}},
      dense("one element", {1}),
      {"ones", {1, 1, 1}, {{1, 1, 1}, {7, 0, 3}, {0, 0, 0}, {5, 5, 5}}},
      dense("3", {3}),
      dense("67", {67}),
      dense("1031", {1031}),
      dense("2-d", {13, 17}),
      {"inner ones", {5, 1, 7}, {{7, 7, 1}, {7, 1, 1}, {7, 99, 1}, {7, 0, 1}}},
      {"transposed input", {5, 7}, {{7, 1}, {1, 5}, {7, 1}, {1, 5}}},
      {"transposed output", {9, 11}, {{1, 9}, {11, 1}, {1, 9}, {11, 1}}},
      {"all transposed", {9, 11}, {{1, 9}, {1, 9}, {1, 9}, {1, 9}}},
      {"holes", {5, 7}, {{20, 2}, {7, 1}, {30, 3}, {1, 6}}},
      {"every other", {37}, {{2}, {3}, {1}, {2}}},
      {"long every other", {1500}, {{2}, {1}, {3}, {1}}},
      all("channels last", image, nhwc),
      {"to channels last", image, {nhwc, nchw, nhwc, nchw}},
      {"from channels last", image, {nchw, nhwc, nchw, nhwc}},
      {"row and column", {6, 37}, {{37, 1}, {1, 0}, {0, 1}, {37, 1}}},
      {"narrow row", {300, 8}, {{8, 1}, {8, 1}, {0, 1}, {1, 0}}},
      {"long row", {7, 700}, {{700, 1}, {700, 1}, {0, 1}, {1, 0}}},
      {"channel of images", image, {nchw, nchw, {0, 1, 0, 0}, nchw}},
      {"one value", {9, 81}, {{81, 1}, {0, 0}, {81, 1}, {0, 0}}},
      {"overlapping rows", {20, 100}, {{100, 1}, {64, 1}, {1, 20}, {64, 1}}},
      {"row with holes", {9, 81}, {{200, 2}, {0, 1}, {100, 1}, {0, 0}}},
      {"eight dimensions",
       {2, 2, 2, 2, 2, 2, 2, 2},
       {{128, 64, 32, 16, 8, 4, 2, 1},
        {1, 2, 4, 8, 16, 32, 64, 128},
        {64, 128, 16, 32, 4, 8, 1, 2},
        {1, 0, 2, 0, 4, 0, 8, 0}}},
      dense("large", {131, 257}),
      {"large transposed", {131, 257}, {{257, 1}, {1, 131}, {257, 1}, {1, 131}}},
      {"large broadcast", {110, 311}, {{311, 1}, {311, 1}, {0, 1}, {1, 0}}},
      {"large with holes", {110, 311}, {{700, 2}, {311, 1}, {311, 1}, {311, 1}}},
      {"column first", {7, 700}, {{700, 1}, {1, 0}, {700, 1}, {1, 0}}},
      {"column second", {7, 700}, {{900, 1}, {0, 1}, {1, 0}, {700, 1}}},
      // Rows of whole packs of any type, which begin where packs do, or not.
      {"padded rows", {9, 48}, {{64, 1}, {48, 1}, {0, 1}, {1, 0}}},
      {"oddly padded rows", {9, 48}, {{51, 1}, {48, 1}, {0, 1}, {48, 1}}},
      {"odd rows of the input", {9, 48}, {{48, 1}, {51, 1}, {49, 1}, {1, 0}}},
      {"heads", {2, 5, 3, 16}, {{240, 48, 16, 1}, {240, 16, 80, 1}, {0, 0, 16, 1}, {15, 3, 1, 0}}},
  };
  return all_layouts;
}

}  // namespace weft::testing
