// Running sums and products: against their definition, and with the same bits on all backends.
// tests/tensor holds them against PyTorch.
#include <cmath>

#include "weft/core/runtime/parallel.h"
#include "weft/tests/kernels/targets.h"

namespace weft::testing {
namespace {

constexpr ScanOp kOps[] = {ScanOp::sum, ScanOp::prod};

class Scan : public TargetTest {
 protected:
  static std::vector<double> scanned(const KernelTable& kernels, const Stream& on, ScanOp op,
                                     bool reverse, DType dtype, const Shape& shape,
                                     const std::vector<double>& values) {
    const Buffer x(on.device, dtype, shape, values);
    Buffer y(on.device, is_floating(dtype) ? dtype : DType::i64, shape);
    const DeviceBytes workspace(on.device, kernels.scan.workspace_bytes(x.view()));
    kernels.scan.scan(on, op, reverse, x.view(), y.view(), workspace.data());
    return y.values();
  }
  std::vector<double> scanned(ScanOp op, bool reverse, DType dtype, const Shape& shape,
                              const std::vector<double>& values) {
    return scanned(kernels(), stream, op, reverse, dtype, shape, values);
  }
  static std::vector<double> defined(ScanOp op, bool reverse, DType dtype, const Shape& shape,
                                     const std::vector<double>& values) {
    return scanned(reference_kernels(), current_stream(Device()), op, reverse, dtype, shape,
                   values);
  }

  /// Values near 1 for products, so that long ones neither vanish nor overflow.
  static std::vector<double> draw(ScanOp op, DType dtype, std::int64_t n) {
    if (op == ScanOp::sum || !is_floating(dtype)) return values_for(dtype, n, -9, 9, 5);
    return values_for(dtype, n, 0.99, 1.01, 6);
  }
};
WEFT_ON_EVERY_TARGET(Scan);

// Rows of one piece and of several, whole and not, alone and in numbers that the CPU does not
// compute side by side; and enough for all threads to share the pieces of a row.
const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all{{1, 1},    {0, 5},     {5, 1},     {4, 7},    {9, 33},
                                      {1, 511},  {3, 512},   {3, 513},   {2, 1025}, {1, 5 * 512},
                                      {70, 700}, {40000, 3}, {1, 200001}};
  return all;
}

TEST_P(Scan, AsDefined) {
  for (const DType dtype : kAllDTypes) {
    for (const ScanOp op : kOps) {
      for (const Shape& shape : shapes()) {
        SCOPED_TRACE(std::string(to_string(dtype)) + " " + to_string(shape));
        const std::vector<double> x = draw(op, dtype, numel(shape));
        for (const bool reverse : {false, true}) {
          const std::vector<double> got = scanned(op, reverse, dtype, shape, x);
          const std::vector<double> want = defined(op, reverse, dtype, shape, x);
          // Both round at most n times, where each partial result is at most `size`: 9 n for a sum,
          // the value itself for a product of positive numbers. Then each rounds once to the dtype.
          const double n = static_cast<double>(shape[1]);
          const double u = dtype == DType::bf16 ? 0x1p-24 : 0x1p-53;
          expect_close(got, want, [&](double value) {
            if (!is_floating(dtype)) return 0.0;
            const double size = op == ScanOp::sum ? 9 * n : std::abs(value);
            return 4 * gamma(n, u) * size + 2 * unit_roundoff(dtype) * std::abs(value);
          });
        }
      }
    }
  }
}

TEST_P(Scan, SameBitsOnAllBackendsAndWithAnyNumberOfThreads) {
  if (GetParam().reference) GTEST_SKIP() << "the definition sums plainly";
  for (const DType dtype : kFloating) {
    for (const ScanOp op : kOps) {
      for (const Shape& shape : shapes()) {
        SCOPED_TRACE(std::string(to_string(dtype)) + " " + to_string(shape));
        const std::vector<double> x = op == ScanOp::sum ? values_for(dtype, numel(shape), -9, 9, 7)
                                                        : draw(op, dtype, numel(shape));
        const std::vector<double> got = scanned(op, false, dtype, shape, x);
        for (const int threads : {1, 2, 7}) {
          const Scoped<int> team(&ThreadState::num_threads, threads);
          expect_equal(got, scanned(cpu_backend()->kernels, current_stream(Device()), op, false,
                                    dtype, shape, x));
        }
      }
    }
  }
}

TEST_P(Scan, RowsOfOnePieceAreComputedPlainly) {
  const std::vector<double> x = values_for(DType::f64, 512, -9, 9, 8);
  EXPECT_EQ(scanned(ScanOp::sum, false, DType::f64, {1, 512}, x),
            defined(ScanOp::sum, false, DType::f64, {1, 512}, x));
}

// 0.1 in pieces of 512: the sums at the ends of pieces are equal to those that the next begin from.
TEST_P(Scan, SumsOfPositiveNumbersNeverDecrease) {
  for (const DType dtype : kFloating) {
    const std::vector<double> x(5000, 0.1);
    const std::vector<double> y = scanned(ScanOp::sum, false, dtype, {1, 5000}, x);
    EXPECT_TRUE(std::is_sorted(y.begin(), y.end()));
  }
}

TEST_P(Scan, SpecialNumbers) {
  const std::vector<double> x{-0.0, 1, kInf, -1, -kInf, 2, kNaN, 3};
  for (const DType dtype : kFloating) {
    expect_equal(scanned(ScanOp::sum, false, dtype, {1, 8}, x),
                 {0, 1, kInf, kInf, kNaN, kNaN, kNaN, kNaN});
    expect_equal(scanned(ScanOp::prod, true, dtype, {1, 4}, {2, 0, kInf, 3}),
                 {kNaN, kNaN, kInf, 3});
  }
}

TEST_P(Scan, IntegersWrapAround) {
  const std::vector<double> x{0x1p62, 0x1p62, 0x1p62, 0x1p62};
  EXPECT_EQ(scanned(ScanOp::sum, false, DType::i64, {1, 4}, x),
            (std::vector<double>{0x1p62, -0x1p63, -0x1p62, 0}));
  EXPECT_EQ(scanned(ScanOp::sum, false, DType::u8, {1, 3}, {200, 100, 255}),
            (std::vector<double>{200, 300, 555}));
  EXPECT_EQ(scanned(ScanOp::sum, true, DType::boolean, {1, 3}, {1, 0, 1}),
            (std::vector<double>{2, 1, 1}));
}

}  // namespace
}  // namespace weft::testing
