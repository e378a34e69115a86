// Softmax and its logarithm, forward and backward, against their definitions in f64. tests/nn holds
// both against PyTorch.
#include <cmath>

#include "weft/tests/kernels/targets.h"

namespace weft::testing {
namespace {

class Softmax : public TargetTest {
 protected:
  void check(DType dtype, SoftmaxOp op, std::int64_t rows, std::int64_t n) {
    SCOPED_TRACE(std::string(to_string(dtype)) + " " + std::to_string(rows) + "x" +
                 std::to_string(n) + (op == SoftmaxOp::softmax ? " softmax" : " log_softmax"));
    const bool log = op == SoftmaxOp::log_softmax;
    const std::vector<double> x = values_for(dtype, rows * n, -8, 8, 3);
    const std::vector<double> g = values_for(dtype, rows * n, -2, 2, 4);
    const SoftmaxKernels& defined = reference_kernels().softmax;
    const Stream host = current_stream(Device());
    const Buffer wide(Device(), DType::f64, {rows, n}, x), want(Device(), DType::f64, {rows, n}),
        want_grad(Device(), DType::f64, {rows, n}), wide_grad_y(Device(), DType::f64, {rows, n}, g);
    defined.forward(host, op, wide.view(), want.view());
    const Buffer in(device(), dtype, {rows, n}, x), grad_y(device(), dtype, {rows, n}, g);
    Buffer y(device(), dtype, {rows, n}), grad_x(device(), dtype, {rows, n});
    kernels().softmax.forward(stream, op, in.view(), y.view());
    // |x| < 8, so x - max loses up to 16 u, which is a relative error of its exponential; exp, log
    // and the last product or difference add a few u. Stored values are rounded once more.
    const double u = compute_roundoff(dtype), stored = unit_roundoff(dtype);
    expect_close(y.values(), want.values(), [&](double v) {
      return 64 * u * (log ? 1 : std::abs(v)) + 1.01 * stored * std::abs(v);
    });

    // From the stored y, like the kernel. A row's sum has an error of 2 u of its terms' absolute
    // sum, which is at most 2 n (log) or 2; the rest adds a few u of each term.
    kernels().softmax.backward(stream, op, grad_y.view(), y.view(), grad_x.view());
    const std::vector<double> kept = y.values();
    const Buffer wide_y(Device(), DType::f64, {rows, n}, kept);
    defined.backward(host, op, wide_grad_y.view(), wide_y.view(), want_grad.view());
    std::vector<double> bound;
    for (std::int64_t r = 0; r < rows; ++r) {
      double size = 0;
      for (std::int64_t c = r * n; c < (r + 1) * n; ++c)
        size += std::abs(log ? g[c] : g[c] * kept[c]);
      for (std::int64_t c = r * n; c < (r + 1) * n; ++c) {
        const double p = log ? std::exp(kept[c]) : kept[c];
        // exp's argument is at most 30: a relative error of 2 u, plus that of the products.
        bound.push_back(8 * u * (std::abs(g[c]) * (log ? 1 : p) + p * size));
      }
    }
    const std::vector<double> got = grad_x.values(), grads = want_grad.values();
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_LE(std::abs(got[i] - grads[i]), bound[i] + 1.01 * stored * std::abs(grads[i]))
          << "gradient " << i << ": got " << got[i] << ", want " << grads[i];
    }
  }
};
WEFT_ON_EVERY_TARGET(Softmax);

TEST_P(Softmax, ForwardAndBackward) {
  for (const DType dtype : kFloating) {
    for (const SoftmaxOp op : {SoftmaxOp::softmax, SoftmaxOp::log_softmax}) {
      for (const auto& [rows, n] : std::vector<std::pair<int, int>>{{1, 1},
                                                                    {5000, 1},
                                                                    {1, 10},
                                                                    {64, 10},
                                                                    {7, 17},
                                                                    {3, 1000},
                                                                    {2, 1025},
                                                                    {3, 3000},
                                                                    {300, 1000}}) {
        check(dtype, op, rows, n);
      }
    }
  }
}

// All the roundings of a thread may go in one direction here, so a long sum in f32 would drift.
TEST_P(Softmax, LongRowsOfOneNumberKeepTheirDigits) {
  const std::int64_t n = 1'000'000;
  std::vector<double> values(static_cast<std::size_t>(n), -0.1), ones(values.size(), 0.1);
  values[0] = 0;
  const Buffer x(device(), DType::f32, {1, n}, values), grad_y(device(), DType::f32, {1, n}, ones);
  Buffer y(device(), DType::f32, {1, n}), grad_x(device(), DType::f32, {1, n});
  kernels().softmax.forward(stream, SoftmaxOp::softmax, x.view(), y.view());
  const double term = std::exp(x.values()[1]), u = compute_roundoff(DType::f32);
  const double want = term / (1 + term * static_cast<double>(n - 1));
  // exp, 1 / sum, the product, and the few of a sum's 18 roundings that do not cancel.
  EXPECT_NEAR(y.values()[1], want, 10 * u * want);
  kernels().softmax.backward(stream, SoftmaxOp::log_softmax, grad_y.view(), x.view(),
                             grad_x.view());
  const double sum = grad_y.values()[0] * static_cast<double>(n);
  EXPECT_NEAR(grad_x.values()[0], grad_y.values()[0] - sum, 6 * u * sum);
}

TEST_P(Softmax, HugeValuesAndNaN) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const Buffer x(device(), dtype, {3, 2}, std::vector<double>{1e30, -1e30, 3, 3, 1, kNaN});
    Buffer y(device(), dtype, {3, 2});
    kernels().softmax.forward(stream, SoftmaxOp::softmax, x.view(), y.view());
    expect_equal(y.values(), {1, 0, 0.5, 0.5, kNaN, kNaN});
    kernels().softmax.forward(stream, SoftmaxOp::log_softmax, x.view(), y.view());
    const double half = y.values()[2];
    EXPECT_NEAR(half, -std::log(2), 1e-7);
    expect_equal(y.values(), {0, rounded(dtype, -2e30), half, half, kNaN, kNaN});
  }
}

}  // namespace
}  // namespace weft::testing
