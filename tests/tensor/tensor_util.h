// Shared by the tests of tensor/: values in and out, and the layouts that the same values can have
// in memory.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "weft/core/runtime/thread_state.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tensor/tensor.h"

namespace weft::testing {

inline constexpr DType kAllDTypes[] = {DType::f32, DType::f64, DType::bf16,   DType::i64,
                                       DType::i32, DType::u8,  DType::boolean};
inline constexpr DType kFloating[] = {DType::f32, DType::f64, DType::bf16};

/// Reproducible values in [low, high).
inline std::vector<double> some_values(std::int64_t n, double low, double high,
                                       std::uint64_t seed = 1) {
  std::vector<double> out(static_cast<std::size_t>(n));
  for (double& v : out) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    v = low + (high - low) * static_cast<double>(seed >> 11) * 0x1p-53;
  }
  return out;
}

/// A tensor with these values, on the thread's device. Values that the dtype cannot represent are
/// rounded.
inline Tensor make(const std::vector<double>& values, const Shape& shape,
                   DType dtype = DType::f32) {
  const Device device = thread_state().device;
  const Tensor host = from_vector(values, shape, Device());
  return raw::to(raw::to(host, dtype), device);
}

/// Values in [low, high), whole numbers for integer dtypes.
inline Tensor some(const Shape& shape, DType dtype = DType::f32, double low = -3, double high = 3,
                   std::uint64_t seed = 1) {
  std::vector<double> values = some_values(numel(shape), low, high, seed);
  if (!is_floating(dtype)) {
    for (double& v : values) v = std::max(std::round(v), dtype == DType::u8 ? 0.0 : -100.0);
  }
  return make(values, shape, dtype);
}

inline std::vector<double> values_of(const Tensor& x) { return x.to_vector<double>(); }

/// x, after its device has come to it: on CUDA only then an index out of range throws.
inline const Tensor& waited(const Tensor& x) {
  runtime(x.device()).synchronize(current_stream(x.device()));
  return x;
}

/// The same values, dense, with the dimensions in reverse order in memory.
inline Tensor reversed_layout(const Tensor& x) {
  Dims order;
  for (int i = x.dim() - 1; i >= 0; --i) order.push_back(i);
  return raw::permute(raw::contiguous(raw::permute(x, order)), order);
}

/// The same values with unused elements between and before them.
inline Tensor with_gaps(const Tensor& x) {
  Shape wide = x.shape();
  for (std::int64_t& n : wide) n = 2 * n + 1;
  Tensor y = full(wide, 77, TensorOptions(x.dtype(), x.device()));
  for (int i = 0; i < x.dim(); ++i) y = raw::slice(y, i, 1, wide[i], 2);
  raw::copy_(y, x);
  return y;
}

/// x itself, the same values dense in another order, and with gaps.
inline std::vector<Tensor> layouts(const Tensor& x) {
  return {x, reversed_layout(x), with_gaps(x)};
}
/// The same, and channels last if x may be a batch of images.
inline std::vector<Tensor> image_layouts(const Tensor& x) {
  std::vector<Tensor> all = layouts(x);
  if (x.dim() == 4) all.push_back(raw::contiguous(x, MemoryFormat::nhwc));
  return all;
}

inline void for_each_index(const Shape& shape, const std::function<void(const Dims&)>& f) {
  const std::int64_t n = numel(shape);
  Dims at = Dims::filled(shape.size(), 0);
  for (std::int64_t i = 0; i < n; ++i) {
    f(at);
    for (int d = shape.size() - 1; d >= 0; --d) {
      if (++at[d] < shape[d]) break;
      at[d] = 0;
    }
  }
}

/// Position in row-major order of index `at`, aligned right, with dimensions of length 1 stretched.
inline std::size_t position(const Shape& shape, const Dims& at) {
  const Strides strides = contiguous_strides(shape);
  std::int64_t offset = 0;
  for (int i = 0; i < shape.size(); ++i) {
    const std::int64_t k = at[at.size() - shape.size() + i];
    offset += (shape[i] == 1 ? 0 : k) * strides[i];
  }
  return static_cast<std::size_t>(offset);
}

/// The relative error of one rounding to the dtype, times a factor for a short formula.
inline double tolerance(DType dtype) {
  switch (dtype) {
    case DType::f64: return 1e-13;
    case DType::f32: return 1e-5;
    case DType::bf16: return 2e-2;
    default: return 0;
  }
}

inline ::testing::AssertionResult near_values(const Tensor& got, const std::vector<double>& want,
                                              double relative) {
  const std::vector<double> values = values_of(got);
  if (values.size() != want.size()) {
    return ::testing::AssertionFailure() << values.size() << " values, want " << want.size();
  }
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(want[i]) && std::isnan(values[i])) continue;
    if (values[i] == want[i]) continue;
    const double bound = relative * std::max(1.0, std::abs(want[i]));
    if (!(std::abs(values[i] - want[i]) <= bound)) {
      return ::testing::AssertionFailure()
             << "element " << i << ": got " << values[i] << ", want " << want[i] << " (shape "
             << to_string(got.shape()) << ", strides " << to_string(got.strides()) << ", "
             << to_string(got.dtype()) << ")";
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace weft::testing

/// Checks the shape and the exact values.
#define EXPECT_TENSOR(tensor, expected_shape, ...)                                                \
  do {                                                                                            \
    const ::weft::Tensor checked = (tensor);                                                      \
    EXPECT_EQ(checked.shape(), (::weft::Shape expected_shape)) << #tensor;                        \
    EXPECT_EQ(::weft::testing::values_of(checked), (std::vector<double> __VA_ARGS__)) << #tensor; \
  } while (0)

/// Checks the shape, and the values within the dtype's tolerance.
#define EXPECT_NEAR_TENSOR(tensor, expected_shape, want)                                          \
  do {                                                                                            \
    const ::weft::Tensor checked = (tensor);                                                      \
    EXPECT_EQ(checked.shape(), ::weft::Shape(expected_shape)) << #tensor;                         \
    EXPECT_TRUE(                                                                                  \
        ::weft::testing::near_values(checked, want, ::weft::testing::tolerance(checked.dtype()))) \
        << #tensor;                                                                               \
  } while (0)
