// Device memory for kernel tests: filled from and read as doubles. Sentinel bytes before, after and
// in the gaps of a strided view are checked whenever the values are read.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/kernels/backend.h"

namespace weft::testing {

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// Base of the suites that run on every kind of device; a kind without a device is skipped.
class DeviceTest : public ::testing::TestWithParam<DeviceType> {
 protected:
  void SetUp() override {
    if (device_count(GetParam()) == 0) GTEST_SKIP() << "no " << device() << " here";
    stream = backend(device()).runtime->default_stream(0);
  }
  Device device() const { return Device(GetParam(), 0); }
  const KernelTable& kernels() const { return backend(device()).kernels; }

  Stream stream;
};

#define WEFT_ON_EVERY_DEVICE(Suite)                                                         \
  INSTANTIATE_TEST_SUITE_P(                                                                 \
      Devices, Suite, ::testing::Values(::weft::DeviceType::cpu, ::weft::DeviceType::cuda), \
      [](const auto& info) { return info.param == ::weft::DeviceType::cpu ? "cpu" : "cuda"; })

// Loops over elements are inside a dispatch and use pointers: the sanitizers' builds would call a
// function for each element.

template <class T>
T from_double(double v) {
  if constexpr (std::is_same_v<T, bf16>)
    return bf16(static_cast<float>(v));
  else
    return static_cast<T>(v);
}
template <class T>
double to_double(T v) {
  if constexpr (std::is_same_v<T, bf16>)
    return static_cast<float>(v);
  else
    return static_cast<double>(v);
}

/// The values as `dtype` represents them, as doubles: what a kernel really reads.
inline std::vector<double> rounded(DType dtype, std::vector<double> values) {
  double* const v = values.data();
  dispatch_all(dtype, [v, n = values.size()]<class T>() {
    if constexpr (std::is_same_v<T, double>) return;
    for (std::size_t i = 0; i < n; ++i) v[i] = to_double(from_double<T>(v[i]));
  });
  return values;
}
inline double rounded(DType dtype, double v) { return rounded(dtype, std::vector<double>{v})[0]; }

/// Raw bytes on a device: a workspace, or the memory of a tensor's view.
class DeviceBytes {
 public:
  static constexpr unsigned char kSentinel = 0xA5;
  // Keeps the block as aligned as the allocation, and is large enough for an overrun by a whole
  // block of channels.
  static constexpr std::size_t kGuard = 4096;

  DeviceBytes(Device device, std::size_t bytes) : device_(device), bytes_(bytes) {
    block_ = static_cast<char*>(rt().allocate(device.index, bytes + 2 * kGuard));
    const std::vector<unsigned char> fill(bytes + 2 * kGuard, kSentinel);
    copy_in(block_, fill.data(), fill.size());
  }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  ~DeviceBytes() {
    download();
    rt().free(device_.index, block_, bytes_ + 2 * kGuard);
  }

  void* data() const { return block_ + kGuard; }
  Device device() const { return device_; }

  void upload(std::span<const unsigned char> bytes) {
    copy_in(block_ + kGuard, bytes.data(), bytes.size());
  }

  /// The bytes between the guards; a changed guard fails the test.
  std::vector<unsigned char> download() const {
    std::vector<unsigned char> all(bytes_ + 2 * kGuard);
    const Stream stream = rt().default_stream(device_.index);
    rt().copy(all.data(), Device(), block_, device_, all.size(), stream);
    rt().synchronize(stream);
    expect_guard(all.data());
    expect_guard(all.data() + kGuard + bytes_);
    return {all.begin() + kGuard, all.begin() + static_cast<std::ptrdiff_t>(kGuard + bytes_)};
  }

 private:
  static void expect_guard(const unsigned char* bytes) {
    static const std::vector<unsigned char> guard(kGuard, kSentinel);
    if (std::memcmp(bytes, guard.data(), kGuard) == 0) return;
    const auto changed = std::mismatch(bytes, bytes + kGuard, guard.data()).first - bytes;
    ADD_FAILURE() << "a kernel wrote outside its output (byte " << changed << " of a guard)";
  }
  Runtime& rt() const { return *backend(device_).runtime; }
  void copy_in(void* to, const void* from, std::size_t bytes) {
    const Stream stream = rt().default_stream(device_.index);
    rt().copy(to, device_, from, Device(), bytes, stream);
    rt().synchronize(stream);
  }

  Device device_;
  std::size_t bytes_;
  char* block_ = nullptr;
};

/// A strided array on a device. Values are passed as doubles, in row-major order of the shape for
/// any strides. Without values the memory contains sentinels.
class Buffer {
 public:
  Buffer(Device device, DType dtype, Shape shape, Strides strides)
      : dtype_(dtype),
        shape_(shape),
        strides_(strides),
        offsets_(element_offsets(shape, strides)),
        bytes_(device, span_elements(shape, strides) * size_of(dtype)) {}
  Buffer(Device device, DType dtype, Shape shape)
      : Buffer(device, dtype, shape, contiguous_strides(shape)) {}
  Buffer(Device device, DType dtype, Shape shape, const std::vector<double>& values)
      : Buffer(device, dtype, shape) {
    set(values);
  }
  Buffer(Device device, DType dtype, Shape shape, Strides strides,
         const std::vector<double>& values)
      : Buffer(device, dtype, shape, strides) {
    set(values);
  }

  View view() const { return {bytes_.data(), dtype_, shape_, strides_}; }
  std::int64_t numel() const { return weft::numel(shape_); }
  DType dtype() const { return dtype_; }

  void set(const std::vector<double>& values) {
    ASSERT_EQ(values.size(), offsets_.size());
    std::vector<unsigned char> raw = bytes_.download();
    dispatch_all(dtype_, [n = values.size(), in = values.data(), offsets = offsets_.data(),
                          out = raw.data()]<class T>() {
      for (std::size_t i = 0; i < n; ++i) {
        const T v = from_double<T>(in[i]);
        std::memcpy(out + static_cast<std::size_t>(offsets[i]) * sizeof(T), &v, sizeof(T));
      }
    });
    bytes_.upload(raw);
  }

  /// Also checks the guards and gaps.
  std::vector<double> values() const {
    std::vector<unsigned char> raw = bytes_.download();
    std::vector<double> out(offsets_.size());
    dispatch_all(dtype_, [n = out.size(), in = raw.data(), offsets = offsets_.data(),
                          to = out.data()]<class T>() {
      bool valid = true;  // of bools, only the bytes 0 and 1 are
      for (std::size_t i = 0; i < n; ++i) {
        const unsigned char* const at = in + static_cast<std::size_t>(offsets[i]) * sizeof(T);
        if constexpr (std::is_same_v<T, bool>) {
          valid = valid && *at <= 1;
          to[i] = *at;
        } else {
          T v;
          std::memcpy(&v, at, sizeof(T));
          to[i] = to_double(v);
        }
      }
      EXPECT_TRUE(valid) << "a byte of a bool is neither 0 nor 1";
    });
    expect_holes(std::move(raw));
    return out;
  }

  static std::vector<std::int64_t> element_offsets(const Shape& shape, const Strides& strides) {
    std::vector<std::int64_t> out;
    const std::int64_t n = weft::numel(shape);
    out.resize(static_cast<std::size_t>(n));
    Dims at = Dims::filled(shape.size(), 0);
    std::int64_t offset = 0, *next = out.data();
    // The innermost dimension at once.
    const int outer = shape.size() - 1;
    const std::int64_t row = outer >= 0 ? shape[outer] : 1, step = outer >= 0 ? strides[outer] : 0;
    for (std::int64_t i = 0; i < n; i += row) {
      for (std::int64_t k = 0; k < row; ++k) *next++ = offset + k * step;
      for (int d = outer - 1; d >= 0; --d) {
        offset += strides[d];
        if (++at[d] < shape[d]) break;
        offset -= strides[d] * shape[d];
        at[d] = 0;
      }
    }
    return out;
  }

 private:
  /// The bytes between elements must be sentinels still.
  void expect_holes(std::vector<unsigned char> raw) const {
    const std::size_t size = size_of(dtype_);
    if (strides_ == contiguous_strides(shape_)) return;  // there are none
    unsigned char* const bytes = raw.data();
    const std::int64_t* const offsets = offsets_.data();
    for (std::size_t i = 0; i < offsets_.size(); ++i) {
      std::memset(bytes + static_cast<std::size_t>(offsets[i]) * size, DeviceBytes::kSentinel,
                  size);
    }
    for (std::size_t b = 0; b < raw.size(); ++b) {
      if (bytes[b] == DeviceBytes::kSentinel) continue;
      ADD_FAILURE() << "a kernel wrote into a hole of its strided output (element " << b / size
                    << ")";
      return;
    }
  }

  static std::size_t span_elements(const Shape& shape, const Strides& strides) {
    if (weft::numel(shape) == 0) return 0;
    std::int64_t last = 0;
    for (int d = 0; d < shape.size(); ++d) last += (shape[d] - 1) * strides[d];
    return static_cast<std::size_t>(last + 1);
  }

  DType dtype_;
  Shape shape_;
  Strides strides_;
  std::vector<std::int64_t> offsets_;
  DeviceBytes bytes_;
};

/// Reproducible values in [low, high), the same on every platform.
inline std::vector<double> random_values(std::int64_t n, double low, double high,
                                         std::uint64_t seed = 1) {
  std::vector<double> out(static_cast<std::size_t>(n));
  for (double& v : out) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    v = low + (high - low) * static_cast<double>(seed >> 11) * 0x1p-53;
  }
  return out;
}

/// Half the distance from 1 to the next larger value: the bound of the relative error of one
/// rounding.
inline double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::f64: return 0x1p-53;
    case DType::f32: return 0x1p-24;
    case DType::bf16: return 0x1p-8;
    default: return 0;
  }
}

/// Integers in [-bound, bound]. Sums of their products are exact in every dtype and order while
/// they stay below 2^24 (f32) or 2^8 (bf16), so a difference is a wrong index and not rounding.
inline std::vector<double> whole_values(std::int64_t n, int bound, std::uint64_t seed) {
  std::vector<double> out = random_values(n, -bound - 0.5, bound + 0.5, seed);
  for (double& v : out) v = std::nearbyint(v);
  return out;
}

/// The bits of the values, so that NaN equals NaN and -0 differs from 0.
inline std::vector<std::uint64_t> bits_of(const std::vector<double>& values) {
  std::vector<std::uint64_t> bits;
  for (const double v : values) bits.push_back(std::bit_cast<std::uint64_t>(v));
  return bits;
}

/// The values after the operation relu.
inline std::vector<double> relu_of(std::vector<double> values) {
  for (double& v : values) v = v > 0 || std::isnan(v) ? v : 0.0;
  return values;
}

/// gamma_n = n u / (1 - n u): the largest error of n successive roundings, relative to the sum of
/// the magnitudes of the terms (Higham, Accuracy and Stability of Numerical Algorithms, 3.1 and
/// 3.4).
inline double gamma(double n, double u) { return n * u / (1 - n * u); }

/// u of the type in which a dtype is summed.
inline double sum_roundoff(DType dtype) {
  return dtype == DType::f64 ? unit_roundoff(DType::f64) : unit_roundoff(DType::f32);
}

/// The bound of an output that is a sum of `terms` products (or values) with magnitudes that add up
/// to `magnitude`. Each product and each addition is rounded once in the type of sums, in any
/// order; FMA may save roundings. So each term has at most `terms` + 1 roundings (gamma_(terms+1) *
/// magnitude). Then storing rounds by u of the dtype, at most twice if a library stores before it
/// adds a bias or an earlier value.
inline double sum_bound(DType dtype, double terms, double magnitude, double value) {
  const double error = gamma(terms + 1, sum_roundoff(dtype)) * magnitude;
  return error +
         2 * unit_roundoff(dtype) * (std::abs(value) + error + magnitude * (dtype == DType::bf16));
}

}  // namespace weft::testing
