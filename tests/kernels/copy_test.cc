// Copies, conversions, masks and comparisons: all exact.
#include <algorithm>
#include <cmath>
#include <deque>

#include "weft/kernels/elementwise_list.h"
#include "weft/tests/kernels/targets.h"

namespace weft::testing {
namespace {

class Copy : public TargetTest {
 protected:
  void check(DType from, DType to, const Layout& l, double low, double high) {
    SCOPED_TRACE(std::string(to_string(from)) + " to " + to_string(to) + ", " + l.name);
    Buffer x(device(), from, l.shape, l.strides[1]);
    x.set(values_for(from, numel(l.shape), low, high, 3));
    Buffer y(device(), to, l.shape, l.strides[0]);
    kernels().elementwise.copy(stream, x.view(), y.view());
    std::vector<double> want = x.values();
    for (double& v : want) v = converted(to, v);
    expect_equal(y.values(), want);
  }

  // Float to integer truncates; to bool tests for != 0; to a narrower float rounds.
  static double converted(DType to, double v) {
    if (to == DType::boolean) return v != 0;
    return rounded(to, v);
  }
};
WEFT_ON_EVERY_TARGET(Copy);

TEST_P(Copy, EveryLayout) {
  for (const Layout& l : layouts()) {
    for (const DType dtype : kAllDTypes) check(dtype, dtype, l, -100, 100);
    check(DType::u8, DType::f32, l, 0, 256);
    check(DType::f32, DType::bf16, l, -100, 100);
    check(DType::bf16, DType::f32, l, -100, 100);
  }
}

TEST_P(Copy, EveryPairOfTypes) {
  for (const Layout& l : {layouts()[6], layouts()[13], layouts()[14]}) {
    for (const DType from : kAllDTypes) {
      for (const DType to : kAllDTypes) {
        // u8 holds no negative numbers.
        check(from, to, l, to == DType::u8 ? 0 : -100, 100);
      }
    }
  }
}

// The same for every vector width and on CUDA: a value outside the integer's range becomes its
// nearest value, and NaN 0.
TEST_P(Copy, FloatingToIntegerSaturates) {
  const std::vector<double> edges{
      kNaN, kInf, -kInf, 0.0, -0.0, 0.5, -0.5, 1.5, -1.5, -1,
      // around the limits of u8, i32 and i64
      254.5, 255, 255.5, 256, 300, -300, 0x1p31 - 128, 0x1p31 - 1, 0x1p31, 0x1p32, -0x1p31,
      -0x1p31 - 1, -0x1p31 - 256, 0x1p63 - 0x1p39, 0x1p63 - 0x1p10, 0x1p63, 0x1p64, -0x1p63,
      -0x1p63 - 0x1p11, -0x1p64, 1e10, -1e10, 1e20, -1e20, 3e38, -3e38, 1e300, -1e300, 1e-40};
  const auto lowest = [](DType to) {
    return to == DType::i64 ? -0x1p63 : to == DType::i32 ? -0x1p31 : 0.0;
  };
  const auto highest = [](DType to) {
    return to == DType::i64 ? 0x1p63 : to == DType::i32 ? 0x1p31 - 1 : 255.0;
  };
  for (const DType from : kFloating) {
    for (const DType to : kIntegers) {
      for (const std::int64_t n : {1, 7, 16, 31, 39, 67}) {
        for (const std::int64_t step : {1, 2}) {
          SCOPED_TRACE(std::string(to_string(from)) + " to " + to_string(to) + ", " +
                       std::to_string(n) + " elements at a step of " + std::to_string(step));
          std::vector<double> values, want;
          for (std::int64_t i = 0; i < n; ++i) {
            const double v = rounded(from, edges[static_cast<std::size_t>(i + n) % edges.size()]);
            values.push_back(v);
            if (to == DType::boolean) {
              want.push_back(v != 0);
            } else {
              want.push_back(std::isnan(v) ? 0
                                           : std::clamp(std::trunc(v), lowest(to), highest(to)));
            }
          }
          const Buffer x(device(), from, Shape{n}, Strides{step}, values);
          Buffer y(device(), to, Shape{n}, Strides{step});
          kernels().elementwise.copy(stream, x.view(), y.view());
          expect_equal(y.values(), want);
        }
      }
    }
  }
}

// As in PyTorch: the lowest bits are kept.
TEST_P(Copy, IntegerToNarrowerIntegerWraps) {
  const std::vector<double> values{-1,     255,        256,         300,   -300,
                                   0x1p31, 0x1p31 + 5, -0x1p31 - 1, 0x1p40};
  const Buffer x(device(), DType::i64, {9}, values);
  Buffer bytes(device(), DType::u8, {9}), words(device(), DType::i32, {9});
  kernels().elementwise.copy(stream, x.view(), bytes.view());
  kernels().elementwise.copy(stream, x.view(), words.view());
  expect_equal(bytes.values(), {255, 255, 0, 44, 212, 0, 5, 255, 0});
  expect_equal(words.values(), {-1, 255, 256, 300, -300, -0x1p31, -0x1p31 + 5, 0x1p31 - 1, 0});
}

// Matrices that lie transposed, one after the other, and with something between them.
TEST_P(Copy, BetweenLayoutsOfImages) {
  const Layout none{"nothing", {0, 64, 64}, {{4096, 64, 1}, {4096, 1, 64}, {}, {}}};
  check(DType::f32, DType::f32, none, -100, 100);
  for (const Shape& shape : {Shape{3, 17, 4, 9}, Shape{2, 64, 8, 8}, Shape{1, 40, 1, 33}}) {
    const Strides nchw = contiguous_strides(shape), nhwc = channels_last_strides(shape);
    Strides apart = nhwc;
    apart[0] += 7;
    for (const DType dtype : {DType::boolean, DType::bf16, DType::f32, DType::i64}) {
      check(dtype, dtype, {"to channels last", shape, {nhwc, nchw, {}, {}}}, -100, 100);
      check(dtype, dtype, {"from channels last", shape, {nchw, nhwc, {}, {}}}, -100, 100);
      check(dtype, dtype, {"from images apart", shape, {nchw, apart, {}, {}}}, -100, 100);
      check(dtype, dtype, {"to images apart", shape, {apart, nchw, {}, {}}}, -100, 100);
    }
  }
}

// Layout changes use tiles of 8 and 64, or 32 and 64: tests lengths around their multiples, and
// short ones.
TEST_P(Copy, Transposed) {
  for (const DType dtype : {DType::u8, DType::bf16, DType::f32, DType::f64}) {
    for (const std::int64_t rows : {3, 4, 7, 8, 9, 31, 32, 33, 63, 64, 65, 130}) {
      for (const std::int64_t cols : {3, 4, 8, 15, 16, 64, 71, 300}) {
        const Layout l{"rows x cols", {rows, cols}, {{cols, 1}, {1, rows}, {}, {}}};
        check(dtype, dtype, l, -100, 100);
        if (dtype == DType::bf16) check(dtype, DType::f32, l, -100, 100);
        if (dtype == DType::f32) check(dtype, DType::bf16, l, -100, 100);
        const Layout padded{"padded", {rows, cols}, {{cols + 3, 1}, {1, rows + 5}, {}, {}}};
        check(dtype, dtype, padded, -100, 100);
      }
    }
  }
}

// A step of 2 to 4, or backwards, has vector code. Odd lengths, in rows and alone.
TEST_P(Copy, StridedAndBackwards) {
  for (const DType dtype : {DType::u8, DType::bf16, DType::f32, DType::f64}) {
    for (const std::int64_t n : {1, 7, 16, 67, 300}) {
      for (const std::int64_t step : {-5, -2, -1, 2, 3, 4, 5}) {
        for (const std::int64_t row_step : {n * std::abs(step), -n * std::abs(step)}) {
          SCOPED_TRACE(std::string(to_string(dtype)) + " " + std::to_string(n) + " by " +
                       std::to_string(step) + ", rows by " + std::to_string(row_step));
          const Shape shape{3, n};
          const Buffer x(device(), dtype, {3 * n * std::abs(step)},
                         values_for(dtype, 3 * n * std::abs(step), 0, 100, 3));
          Buffer y(device(), dtype, shape);
          View from = x.view();
          from.shape = shape;
          from.strides = {row_step, step};
          const std::int64_t first =
              (step < 0 ? (1 - n) * step : 0) + (row_step < 0 ? -2 * row_step : 0);
          from.data = from.as<char>() + first * static_cast<std::int64_t>(size_of(dtype));
          kernels().elementwise.copy(stream, from, y.view());
          std::vector<double> want;
          for (std::int64_t r = 0; r < 3; ++r) {
            for (std::int64_t i = 0; i < n; ++i) {
              want.push_back(x.values()[static_cast<std::size_t>(first + r * row_step + i * step)]);
            }
          }
          expect_equal(y.values(), want);
        }
      }
    }
  }
}

TEST_P(Copy, BetweenImageLayouts) {
  for (const Shape& image : {Shape{2, 3, 28, 28}, Shape{5, 8, 26, 26}, Shape{1, 64, 7, 9},
                             Shape{9, 1, 5, 5}, Shape{4, 100, 1, 1}, Shape{0, 3, 4, 4}}) {
    const Strides nchw = contiguous_strides(image), nhwc = channels_last_strides(image);
    check(DType::f32, DType::f32, {"to nhwc", image, {nhwc, nchw, {}, {}}}, -9, 9);
    check(DType::f32, DType::f32, {"to nchw", image, {nchw, nhwc, {}, {}}}, -9, 9);
    check(DType::f64, DType::f64, {"to nhwc", image, {nhwc, nchw, {}, {}}}, -9, 9);
    check(DType::u8, DType::f32, {"to nhwc", image, {nhwc, nchw, {}, {}}}, 0, 256);
  }
}

// Side by side in one result: short rows, which the CPU copies together, among others.
TEST_P(Copy, All) {
  struct Part {
    const char* name;
    std::int64_t columns;
    Strides strides;
    DType dtype = DType::f32;
  };
  for (const std::int64_t rows : {0, 1, 2, 7, 300}) {
    const std::vector<Part> parts{{"dense", 5, {5, 1}},
                                  {"with gaps", 64, {70, 1}},
                                  {"one row for all", 33, {0, 1}},
                                  {"one column", 1, {1, 1}},
                                  {"nothing", 0, {1, 1}},
                                  {"transposed", 9, {1, std::max<std::int64_t>(rows, 1)}},
                                  {"another dtype", 6, {6, 1}, DType::i32},
                                  {"long rows", 5000, {5000, 1}},
                                  {"dense again", 3, {3, 1}}};
    std::int64_t width = 0;
    for (const Part& part : parts) width += part.columns;
    std::deque<Buffer> xs;
    for (const Part& part : parts) {
      xs.emplace_back(device(), part.dtype, Shape{rows, part.columns}, part.strides);
      xs.back().set(values_for(part.dtype, rows * part.columns, -99, 99, 3u + xs.size()));
    }
    Buffer y(device(), DType::f32, {rows, width}, Strides{width + 2, 1});
    std::vector<CopyPair> pairs;
    View to = y.view();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      to.shape[1] = parts[i].columns;
      pairs.push_back({xs[i].view(), to});
      to.data = to.as<float>() + parts[i].columns;
    }
    kernels().elementwise.copy_all(stream, pairs);
    std::vector<double> want;
    std::vector<std::vector<double>> values;
    for (const Buffer& x : xs) values.push_back(x.values());
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::size_t i = 0; i < parts.size(); ++i) {
        const auto row = values[i].begin() + r * parts[i].columns;
        want.insert(want.end(), row, row + parts[i].columns);
      }
    }
    SCOPED_TRACE(rows);
    expect_equal(y.values(), want);
  }
}

// Results of other numbers of rows, with other gaps, and of other dtypes; and more than are copied
// together.
TEST_P(Copy, AllToSeveralResults) {
  std::deque<Buffer> xs, ys;
  std::vector<CopyPair> pairs;
  for (int i = 0; i < 200; ++i) {
    const Shape shape{2 + i / 70, 1 + i % 5};
    const DType dtype = i % 90 < 80 ? DType::f32 : DType::u8;
    xs.emplace_back(device(), dtype, shape, values_for(dtype, numel(shape), 0, 99, 3u + i));
    ys.emplace_back(device(), dtype, shape, Strides{i < 100 ? 8 : 9, 1});
  }
  for (int i = 0; i < 200; ++i) pairs.push_back({xs[i].view(), ys[i].view()});
  kernels().elementwise.copy_all(stream, pairs);
  for (int i = 0; i < 200; ++i) {
    SCOPED_TRACE(i);
    expect_equal(ys[i].values(), xs[i].values());
  }
}

// Between f32 and bf16, which CUDA converts together: tensors of less and more than a block's
// share, in one order of dimensions or in two, that begin anywhere, and more than go together.
TEST_P(Copy, AllConversions) {
  const std::vector<std::int64_t> lengths{1, 0, 3, 4, 64, 257, 4095, 4096, 4097, 9001};
  std::deque<Buffer> xs, ys;
  std::vector<CopyPair> pairs;
  const auto add = [&](DType from, DType to, const Shape& shape, const Strides& x, const Strides& y,
                       std::int64_t skip) {
    const Shape whole{numel(shape) + skip};
    const auto seed = 3u + static_cast<unsigned>(xs.size());
    xs.emplace_back(device(), from, whole, values_for(from, whole[0], -99, 99, seed));
    ys.emplace_back(device(), to, whole, std::vector<double>(static_cast<std::size_t>(whole[0])));
    View of_x = xs.back().view(), of_y = ys.back().view();
    of_x.shape = of_y.shape = shape;
    of_x.strides = x;
    of_y.strides = y;
    of_x.data = of_x.as<char>() + skip * static_cast<std::int64_t>(size_of(from));
    of_y.data = of_y.as<char>() + skip * static_cast<std::int64_t>(size_of(to));
    pairs.push_back({of_x, of_y});
  };
  for (const auto& [from, to] : {std::pair(DType::f32, DType::bf16), {DType::bf16, DType::f32}}) {
    for (const std::int64_t skip : {0, 1, 2, 4}) {
      for (const std::int64_t n : lengths) add(from, to, {n}, {1}, {1}, skip);
      add(from, to, {5, 7}, {1, 5}, {1, 5}, skip);
    }
    for (int i = 0; i < 40; ++i) add(from, to, {i + 1}, {1}, {1}, 0);
    add(from, to, {5, 7}, {1, 5}, {7, 1}, 0);
    add(from, from, {33}, {1}, {1}, 0);
  }
  kernels().elementwise.copy_all(stream, pairs);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    SCOPED_TRACE(i);
    const CopyPair& pair = pairs[i];
    const std::int64_t n = pair.x.numel(), skip = xs[i].view().numel() - n;
    const std::vector<double> x = xs[i].values();
    std::vector<double> expected(x.size());
    for (std::int64_t j = 0; j < n; ++j) {
      // The j-th element in row-major order.
      std::int64_t from = skip, to = skip, rest = j;
      for (int d = pair.x.shape.size() - 1; d >= 0; --d) {
        from += rest % pair.x.shape[d] * pair.x.strides[d];
        to += rest % pair.x.shape[d] * pair.y.strides[d];
        rest /= pair.x.shape[d];
      }
      expected[static_cast<std::size_t>(to)] =
          rounded(pair.y.dtype, x[static_cast<std::size_t>(from)]);
    }
    expect_equal(ys[i].values(), expected);
  }
}

TEST_P(Copy, NaNStaysNaN) {
  const std::vector<double> v(67, kNaN), w{kInf, -kInf, kNaN, 0, 1};
  for (const DType from : kFloating) {
    for (const DType to : kFloating) {
      const Buffer x(device(), from, {67}, v), z(device(), from, {5}, w);
      Buffer y(device(), to, {67}), u(device(), to, {5});
      kernels().elementwise.copy(stream, x.view(), y.view());
      kernels().elementwise.copy(stream, z.view(), u.view());
      expect_equal(y.values(), v);
      expect_equal(u.values(), w);
    }
  }
}

TEST_P(Copy, Fill) {
  for (const Layout& l : layouts()) {
    for (const DType dtype : kAllDTypes) {
      SCOPED_TRACE(std::string(to_string(dtype)) + " " + l.name);
      Buffer y(device(), dtype, l.shape, l.strides[0]);
      kernels().elementwise.fill(stream, 3.3, y.view());
      expect_equal(y.values(), std::vector<double>(static_cast<std::size_t>(numel(l.shape)),
                                                   converted(dtype, 3.3)));
    }
  }
}

TEST_P(Copy, Where) {
  for (const Layout& l : layouts()) {
    for (const DType dtype : kAllDTypes) {
      SCOPED_TRACE(std::string(to_string(dtype)) + " " + l.name);
      Buffer condition(device(), DType::boolean, l.shape, l.strides[1]);
      condition.set(values_for(DType::boolean, numel(l.shape), 0, 2, 5));
      Buffer a(device(), dtype, l.shape, l.strides[2]), b(device(), dtype, l.shape, l.strides[3]);
      a.set(values_for(dtype, numel(l.shape), -9, 9, 6));
      b.set(values_for(dtype, numel(l.shape), -9, 9, 7));
      Buffer y(device(), dtype, l.shape, l.strides[0]);
      kernels().elementwise.where(stream, condition.view(), a.view(), b.view(), y.view());
      std::vector<double> want = b.values();
      const std::vector<double> takes = condition.values(), from = a.values();
      for (std::size_t i = 0; i < want.size(); ++i) {
        if (takes[i] != 0) want[i] = from[i];
      }
      expect_equal(y.values(), want);
    }
  }
}

TEST_P(Copy, EveryComparison) {
  for (const Layout& l : layouts()) {
    for (const DType dtype : kAllDTypes) {
      SCOPED_TRACE(std::string(to_string(dtype)) + " " + l.name);
      // Few different values, so that equal pairs occur; with zeros for the logical operations.
      Buffer u(device(), dtype, l.shape, l.strides[1]), v(device(), dtype, l.shape, l.strides[2]);
      u.set(rounded(DType::i32, values_for(dtype, numel(l.shape), -2, 3, 6)));
      v.set(rounded(DType::i32, values_for(dtype, numel(l.shape), -2, 3, 8)));
      const std::vector<double> us = u.values(), vs = v.values();
      std::vector<double> want(us.size());
#define X(value, name, expression)                                                         \
  {                                                                                        \
    SCOPED_TRACE(#name);                                                                   \
    for (std::size_t i = 0; i < us.size(); ++i) {                                          \
      const double a = us[i], b = vs[i];                                                   \
      want[i] = (expression);                                                              \
    }                                                                                      \
    Buffer y(device(), DType::boolean, l.shape, l.strides[0]);                             \
    kernels().elementwise.compare(stream, CompareOp::value, u.view(), v.view(), y.view()); \
    expect_equal(y.values(), want);                                                        \
  }
      WEFT_COMPARE_OPS(X)
#undef X
    }
  }
}

TEST_P(Copy, NaNComparesFalseExceptNotEqual) {
  const Buffer a(device(), DType::f32, {2}, std::vector<double>{kNaN, 1});
  const Buffer b(device(), DType::f32, {2}, std::vector<double>{kNaN, kNaN});
  Buffer y(device(), DType::boolean, {2});
  for (const CompareOp op :
       {CompareOp::eq, CompareOp::lt, CompareOp::le, CompareOp::gt, CompareOp::ge}) {
    kernels().elementwise.compare(stream, op, a.view(), b.view(), y.view());
    expect_equal(y.values(), {0, 0});
  }
  kernels().elementwise.compare(stream, CompareOp::ne, a.view(), b.view(), y.view());
  expect_equal(y.values(), {1, 1});
}

TEST_P(Copy, Arange) {
  for (const DType dtype :
       {DType::f32, DType::f64, DType::bf16, DType::i64, DType::i32, DType::u8}) {
    for (const std::int64_t n : {0, 1, 17, 40000}) {
      for (const std::int64_t stride : {1, 3}) {
        SCOPED_TRACE(std::string(to_string(dtype)) + " " + std::to_string(n));
        // Integers up to 120 are exact in every dtype.
        const double step = n <= 17 ? 7 : 0;
        Buffer y(device(), dtype, {n}, Strides{stride});
        kernels().elementwise.arange(stream, 1, step, y.view());
        std::vector<double> want;
        for (std::int64_t i = 0; i < n; ++i) want.push_back(1 + step * static_cast<double>(i));
        expect_equal(y.values(), want);
      }
    }
  }
  Buffer y(device(), DType::f64, {40000});
  kernels().elementwise.arange(stream, -1, 0.25, y.view());
  EXPECT_EQ(y.values()[39999], -1 + 0.25 * 39999);
  Buffer big(device(), DType::i64, {40000});
  kernels().elementwise.arange(stream, 5, 3, big.view());
  EXPECT_EQ(big.values()[39999], 5 + 3 * 39999);
}

}  // namespace
}  // namespace weft::testing
