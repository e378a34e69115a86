// One matrix product with its reference, for the tests that run every way to multiply.
#pragma once

#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <ostream>
#include <vector>

#include "weft/tests/kernels/device_buffers.h"

namespace weft::testing {

/// The memory layout of an operand [batch, rows, cols].
enum class Lay {
  rows,         // dense, row-major
  cols,         // dense, column-major
  rows_padded,  // row-major with a gap after each row
  cols_padded,
  shared,  // one matrix for the whole batch: batch stride 0
};

inline Strides strides_of(Lay lay, const Shape& s) {
  switch (lay) {
    case Lay::rows: return contiguous_strides(s);
    case Lay::cols: return {s[1] * s[2], 1, s[1]};
    case Lay::rows_padded: return {s[1] * (s[2] + 3), s[2] + 3, 1};
    case Lay::cols_padded: return {(s[1] + 5) * s[2], 1, s[1] + 5};
    case Lay::shared: return {0, s[2], 1};
  }
  return {};
}

struct MatmulCase {
  std::int64_t batch, m, n, k;
  Lay a = Lay::rows, b = Lay::rows;
  bool bias = false, accumulate = false;

  friend void PrintTo(const MatmulCase& c, std::ostream* out) {
    *out << "batch " << c.batch << " m " << c.m << " n " << c.n << " k " << c.k << " a " << int(c.a)
         << " b " << int(c.b) << (c.bias ? " bias" : "") << (c.accumulate ? " acc" : "");
  }
};

/// A problem on a device with its reference: for each output the value, and the sum of magnitudes
/// for its error bound.
struct MatmulTrial {
  MatmulArgs args;
  std::unique_ptr<Buffer> a, b, y, bias;
  std::vector<double> before, expected, magnitude;

  MatmulTrial(Device device, DType dtype, const MatmulCase& c, const std::vector<double>& a_values,
              const std::vector<double>& b_values, const std::vector<double>& y_values,
              const std::vector<double>& bias_values, std::optional<DType> y_dtype = {}) {
    const Shape a_shape{c.batch, c.m, c.k}, b_shape{c.batch, c.k, c.n}, y_shape{c.batch, c.m, c.n};
    a = std::make_unique<Buffer>(device, dtype, a_shape, strides_of(c.a, a_shape), a_values);
    b = std::make_unique<Buffer>(device, dtype, b_shape, strides_of(c.b, b_shape), b_values);
    y = std::make_unique<Buffer>(device, y_dtype.value_or(dtype), y_shape);
    args = {a->view(), b->view(), y->view(), {}, c.accumulate};
    if (c.bias) {
      bias = std::make_unique<Buffer>(device, dtype, Shape{c.n}, bias_values);
      args.bias = bias->view();
    }
    // A shared matrix is written once per batch, so the kernel's values are read back.
    const std::vector<double> av = a->values(), bv = b->values();
    before = rounded(dtype, y_values);
    const std::vector<double> biases = rounded(dtype, bias_values);
    for (std::int64_t i = 0; i < c.batch; ++i) {
      for (std::int64_t row = 0; row < c.m; ++row) {
        for (std::int64_t col = 0; col < c.n; ++col) {
          const double start = c.accumulate ? before[(i * c.m + row) * c.n + col]
                               : c.bias     ? biases[col]
                                            : 0.0;
          double sum = start, magnitudes = std::abs(start);
          for (std::int64_t p = 0; p < c.k; ++p) {
            const double product = av[(i * c.m + row) * c.k + p] * bv[(i * c.k + p) * c.n + col];
            sum += product;
            magnitudes += std::abs(product);
          }
          expected.push_back(sum);
          magnitude.push_back(magnitudes);
        }
      }
    }
  }

  /// Expects what run() returned to be exact, or else within the bound of rounding sums of `terms`
  /// products.
  void expect(const std::vector<double>& got, DType dtype, std::int64_t terms, bool exact) const {
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double bound =
          exact ? 0 : sum_bound(dtype, double(terms) + 1, magnitude[i], expected[i]);
      ASSERT_NEAR(got[i], expected[i], bound) << "element " << i;
    }
  }

  std::vector<double> run(const Stream& stream, const MatmulKernels& kernels,
                          const MatmulPlan& plan) {
    if (args.accumulate) y->set(before);
    const DeviceBytes workspace(stream.device, plan.workspace_bytes);
    // The workspace has no usable content: NaN in every dtype.
    if (stream.device.is_cpu()) std::memset(workspace.data(), 0xff, plan.workspace_bytes);
    kernels.run(stream, plan, args, workspace.data());
    return y->values();
  }
};

}  // namespace weft::testing
