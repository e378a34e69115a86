// Pooling in both layouts against the definition in f64. Comparisons of max pooling are exact: its
// gradients add small integers.
#include <cmath>
#include <limits>

#include "weft/tests/kernels/targets.h"

namespace weft::testing {
namespace {

struct PoolCase {
  Shape x;
  Pool2dParams p;
  std::array<std::int64_t, 2> size = {};  // of the output, for an adaptive pooling
};

std::int64_t out_size(const PoolCase& c, int axis) {
  if (c.p.adaptive) return c.size[static_cast<std::size_t>(axis)];
  const std::int64_t size = c.x[2 + axis], k = c.p.kernel[axis], s = c.p.stride[axis];
  const std::int64_t pad = c.p.padding[axis];
  const std::int64_t span = size + 2 * pad - c.p.dilation[axis] * (k - 1) - 1;
  std::int64_t out = (c.p.ceil_mode ? span + s - 1 : span) / s + 1;
  if (c.p.ceil_mode && (out - 1) * s >= size + pad) --out;
  return out;
}

const std::vector<PoolCase>& pool_cases() {
  static const std::vector<PoolCase> all{
      {{1, 1, 1, 1}, {}},
      {{2, 3, 8, 10}, {.kernel = {2, 2}, .stride = {2, 2}}},
      {{2, 3, 9, 7}, {.kernel = {2, 2}, .stride = {2, 2}}},
      {{2, 3, 9, 7}, {.kernel = {2, 2}, .stride = {2, 2}, .ceil_mode = true}},
      {{2, 17, 12, 11}, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}}},
      {{3, 40, 7, 9}, {.kernel = {3, 2}, .stride = {1, 2}, .padding = {1, 0}}},
      {{2, 5, 13, 13}, {.kernel = {3, 3}, .stride = {2, 1}, .padding = {1, 1}, .dilation = {2, 3}}},
      {{1, 4, 5, 5}, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}, .ceil_mode = true}},
      {{2, 6, 1, 1}, {.kernel = {2, 2}, .stride = {1, 1}, .padding = {1, 1}}},
      {{4, 64, 26, 26}, {.kernel = {2, 2}, .stride = {2, 2}}},
      {{0, 3, 4, 4}, {.kernel = {2, 2}, .stride = {2, 2}}},
      // The channels of a pixel in packs, on CUDA with and without a window of its own.
      {{2, 16, 9, 8}, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}}},
      {{3, 8, 8, 7}, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 0}, .ceil_mode = true}},
      {{2, 24, 7, 9}, {.kernel = {2, 2}, .stride = {2, 2}, .padding = {1, 1}}},
      {{2, 16, 8, 9}, {.kernel = {3, 3}, .stride = {1, 1}, .padding = {1, 1}}},
      {{2, 8, 6, 7}, {.kernel = {2, 2}, .stride = {2, 1}, .dilation = {2, 1}}},
      {{2, 16, 13, 11}, {.adaptive = true}, {5, 4}},
      // Numbers that an adaptive pooling does not use.
      {{2, 3, 8, 8},
       {.stride = {3, 2}, .padding = {1, 0}, .dilation = {2, 2}, .adaptive = true},
       {2, 2}},
      {{1, 5, 3, 2}, {.adaptive = true}, {4, 7}},
      // Numbers that 32 bits do not hold.
      {{2, 16, 4, 5}, {.kernel = {2, 2}, .stride = {kMaxPixels, kMaxPixels}}},
  };
  return all;
}

class Pooling : public TargetTest {
 protected:
  /// The maxima, their positions, and the gradient of x.
  static std::array<std::vector<double>, 3> by_definition(const PoolCase& c, const Shape& out,
                                                          const std::vector<double>& values,
                                                          const std::vector<double>& grads) {
    const PoolingKernels& kernels = reference_kernels().pooling;
    const Stream host = current_stream(Device());
    const Buffer x(Device(), DType::f64, c.x, values), grad_y(Device(), DType::f64, out, grads);
    const Buffer y(Device(), DType::f64, out), index(Device(), DType::i32, out),
        grad_x(Device(), DType::f64, c.x);
    kernels.max_pool2d(host, c.p, x.view(), y.view(), index.view());
    kernels.max_pool2d_backward(host, c.p, grad_y.view(), index.view(), grad_x.view());
    return {y.values(), index.values(), grad_x.values()};
  }

  void check(const PoolCase& c, DType dtype, MemoryFormat format, std::vector<double> values) {
    SCOPED_TRACE(to_string(c.x) + (format == MemoryFormat::nhwc ? " nhwc " : " nchw ") +
                 to_string(dtype));
    const Shape out{c.x[0], c.x[1], out_size(c, 0), out_size(c, 1)};
    std::vector<double> grads;
    for (std::int64_t i = 0; i < numel(out); ++i) grads.push_back(static_cast<double>(i % 5 + 1));
    const auto [want, winners, want_grad] = by_definition(c, out, values, grads);
    const Buffer x(device(), dtype, c.x, format_strides(c.x, format), values);
    Buffer y(device(), dtype, out, format_strides(out, format));
    Buffer index(device(), DType::i32, out, format_strides(out, format));
    kernels().pooling.max_pool2d(stream, c.p, x.view(), y.view(), index.view());
    expect_equal(y.values(), want);
    expect_equal(index.values(), winners);

    const Buffer grad_y(device(), dtype, out, format_strides(out, format), grads);
    Buffer grad_x(device(), dtype, c.x, format_strides(c.x, format));
    kernels().pooling.max_pool2d_backward(stream, c.p, grad_y.view(), index.view(), grad_x.view());
    expect_equal(grad_x.values(), want_grad);
  }
};
WEFT_ON_EVERY_TARGET(Pooling);

TEST_P(Pooling, ForwardAndBackward) {
  for (const PoolCase& c : pool_cases()) {
    for (const DType dtype : kFloating) {
      for (const MemoryFormat format : {MemoryFormat::nchw, MemoryFormat::nhwc}) {
        check(c, dtype, format, values_for(dtype, numel(c.x), -3, 3, 9));
        // Few different values: of equal ones the first must win.
        check(c, dtype, format, rounded(DType::i32, random_values(numel(c.x), -2, 3, 10)));
        // All are far below zero: padding must not win.
        check(c, dtype, format, values_for(dtype, numel(c.x), -9, -8, 11));
      }
    }
  }
}

TEST_P(Pooling, TheLastNaNWins) {
  const PoolCase c{{2, 20, 6, 6}, {.kernel = {3, 3}, .stride = {3, 3}}};
  for (const DType dtype : kFloating) {
    for (const MemoryFormat format : {MemoryFormat::nchw, MemoryFormat::nhwc}) {
      std::vector<double> v = values_for(dtype, numel(c.x), -3, 3, 9);
      for (std::size_t i = 5; i < v.size(); i += 11) v[i] = kNaN;
      check(c, dtype, format, v);
    }
  }
}

// With dilation a window may contain no pixel: then nothing outside the image is read, and no pixel
// gets the window's gradient. (PyTorch's value is the same; its index is outside the image.)
TEST_P(Pooling, AWindowOfPaddingAlone) {
  const Pool2dParams p{.kernel = {2, 2}, .stride = {1, 1}, .padding = {1, 1}, .dilation = {2, 2}};
  for (const MemoryFormat format : {MemoryFormat::nchw, MemoryFormat::nhwc}) {
    const Shape shape{1, 2, 1, 1};
    const Buffer x(device(), DType::f32, shape, format_strides(shape, format),
                   std::vector<double>{3, 4});
    Buffer y(device(), DType::f32, shape, format_strides(shape, format));
    Buffer index(device(), DType::i32, shape, format_strides(shape, format));
    kernels().pooling.max_pool2d(stream, p, x.view(), y.view(), index.view());
    expect_equal(y.values(), {-kInf, -kInf});
    expect_equal(index.values(), {-1, -1});
    const Buffer grad_y(device(), DType::f32, shape, format_strides(shape, format),
                        std::vector<double>{5, 6});
    Buffer grad_x(device(), DType::f32, shape, format_strides(shape, format));
    kernels().pooling.max_pool2d_backward(stream, p, grad_y.view(), index.view(), grad_x.view());
    expect_equal(grad_x.values(), {0, 0});
  }
}

struct AvgCase {
  Shape x, y;
  AvgPool2dParams p;
};

const std::vector<AvgCase>& avg_cases() {
  static const std::vector<AvgCase> all{
      {{1, 1, 1, 1}, {1, 1, 1, 1}, {}},
      {{2, 3, 8, 10}, {2, 3, 4, 5}, {.kernel = {2, 2}, .stride = {2, 2}}},
      {{2, 17, 12, 11}, {2, 17, 6, 6}, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}}},
      {{3, 40, 7, 9},
       {3, 40, 7, 5},
       {.kernel = {3, 2}, .stride = {1, 2}, .padding = {1, 0}, .ceil_mode = true}},
      {{2, 5, 6, 7},
       {2, 5, 6, 7},
       {.kernel = {3, 3}, .padding = {1, 1}, .count_include_pad = false}},
      {{1, 2, 9, 9}, {1, 2, 3, 3}, {.kernel = {2, 2}, .stride = {3, 3}, .divisor = 7}},
      {{1, 3, 20, 40}, {1, 3, 2, 2}, {.kernel = {10, 18}, .stride = {10, 20}}},
      {{2, 3, 3, 700}, {2, 3, 1, 350}, {.kernel = {3, 2}, .stride = {1, 2}}},
      {{2, 300, 4, 4}, {2, 300, 2, 2}, {.kernel = {2, 2}, .stride = {2, 2}}},
      {{2, 16, 9, 8},
       {2, 16, 5, 4},
       {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}, .count_include_pad = false}},
      {{2, 16, 4, 5}, {2, 16, 1, 1}, {.kernel = {2, 2}, .stride = {kMaxPixels, kMaxPixels}}},
      {{4, 64, 26, 26}, {4, 64, 13, 13}, {.kernel = {2, 2}, .stride = {2, 2}}},
      {{0, 3, 4, 4}, {0, 3, 2, 2}, {.kernel = {2, 2}, .stride = {2, 2}}},
      {{2, 300, 7, 7}, {2, 300, 1, 1}, {.adaptive = true}},
      {{2, 3, 13, 11}, {2, 3, 5, 4}, {.adaptive = true}},
      {{1, 5, 3, 2}, {1, 5, 4, 7}, {.adaptive = true}},
      {{1, 2, 5, 600}, {1, 2, 2, 7}, {.adaptive = true}},
      {{2, 3, 4, 4}, {2, 3, 0, 2}, {.adaptive = true}},
  };
  return all;
}

/// The averages and the gradient of x.
std::array<std::vector<double>, 2> averages_by_definition(const AvgCase& c,
                                                          const std::vector<double>& values,
                                                          const std::vector<double>& grads) {
  const PoolingKernels& kernels = reference_kernels().pooling;
  const Stream host = current_stream(Device());
  const Buffer x(Device(), DType::f64, c.x, values), grad_y(Device(), DType::f64, c.y, grads);
  const Buffer y(Device(), DType::f64, c.y), grad_x(Device(), DType::f64, c.x);
  kernels.avg_pool2d(host, c.p, x.view(), y.view());
  kernels.avg_pool2d_backward(host, c.p, grad_y.view(), grad_x.view());
  return {y.values(), grad_x.values()};
}

std::vector<double> magnitudes(std::vector<double> values) {
  for (double& v : values) v = std::abs(v);
  return values;
}

class Averages : public TargetTest {
 protected:
  void check(const AvgCase& c, DType dtype, const std::vector<double>& values,
             const std::vector<double>& grads) {
    const auto [want, want_grad] = averages_by_definition(c, values, grads);
    const auto [sizes, grad_sizes] =
        averages_by_definition(c, magnitudes(values), magnitudes(grads));
    // At most 16 terms are added up in f32, each a rounded quotient in backward, else f64 is used,
    // where a window has at most 60,000.
    const double terms = dtype == DType::f64 ? 60'000 : 18;
    const auto near = [&](const std::vector<double>& got, const std::vector<double>& expected,
                          const std::vector<double>& size) {
      ASSERT_EQ(got.size(), expected.size());
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_LE(std::abs(got[i] - expected[i]),
                  terms * compute_roundoff(dtype) * size[i] +
                      1.01 * unit_roundoff(dtype) * std::abs(expected[i]))
            << "element " << i << ": got " << got[i] << ", expected " << expected[i];
      }
    };
    for (const MemoryFormat format : {MemoryFormat::nchw, MemoryFormat::nhwc}) {
      SCOPED_TRACE(to_string(c.x) + " to " + to_string(c.y) +
                   (format == MemoryFormat::nhwc ? " nhwc " : " nchw ") + to_string(dtype));
      const Buffer x(device(), dtype, c.x, format_strides(c.x, format), values);
      Buffer y(device(), dtype, c.y, format_strides(c.y, format));
      kernels().pooling.avg_pool2d(stream, c.p, x.view(), y.view());
      near(y.values(), want, sizes);
      const Buffer grad_y(device(), dtype, c.y, format_strides(c.y, format), grads);
      Buffer grad_x(device(), dtype, c.x, format_strides(c.x, format));
      kernels().pooling.avg_pool2d_backward(stream, c.p, grad_y.view(), grad_x.view());
      near(grad_x.values(), want_grad, grad_sizes);
    }
  }
  void check_equal_numbers(const AvgCase& c, DType dtype, double number) {
    check(c, dtype,
          rounded(dtype, std::vector<double>(static_cast<std::size_t>(numel(c.x)), number)),
          rounded(dtype, std::vector<double>(static_cast<std::size_t>(numel(c.y)), number)));
  }
};
WEFT_ON_EVERY_TARGET(Averages);

TEST_P(Averages, ForwardAndBackward) {
  for (const AvgCase& c : avg_cases()) {
    for (const DType dtype : kFloating) {
      check(c, dtype, values_for(dtype, numel(c.x), -3, 3, 1),
            values_for(dtype, numel(c.y), -3, 3, 2));
    }
  }
}

const AvgCase kWholeImages{{1, 8, 200, 300}, {1, 8, 1, 1}, {.adaptive = true}};

// Of equal numbers the roundings do not cancel: added up in f32 one after the other, 900 would be
// off by 150 units of rounding, and 60,000 by 10,000.
TEST_P(Averages, OfManyTermsKeepTheirDigits) {
  const AvgCase overlapping{{1, 1, 60, 60}, {1, 1, 31, 31}, {.kernel = {30, 30}}};
  for (const DType dtype : kFloating) {
    check_equal_numbers(overlapping, dtype, 0.7);
    check_equal_numbers(kWholeImages, dtype, 0.7);
  }
}

TEST_P(Averages, SumsMayLeaveTheRangeOfF32OnTheWay) {
  const AvgCase small{{2, 8, 6, 6}, {2, 8, 3, 3}, {.kernel = {2, 2}, .stride = {2, 2}}};
  for (const DType dtype : {DType::f32, DType::bf16}) {
    check_equal_numbers(small, dtype, 3e38);
    check_equal_numbers(kWholeImages, dtype, 3e38);
    // Backward: three of the four gradients at the pixel in the middle are more than f32 holds.
    check({{1, 1, 3, 3}, {1, 1, 2, 2}, {.kernel = {2, 2}, .divisor = 1}}, dtype,
          std::vector<double>(9, 1), rounded(dtype, {1.6e38, 1.6e38, 1.6e38, -1.6e38}));
  }
}

// An image without rows, of which the padding makes windows: the sum 0 over no pixels is NaN.
TEST_P(Averages, OfPaddingAlone) {
  const Shape empty{1, 1, 0, 3}, out{1, 1, 1, 2};
  for (const bool include_pad : {false, true}) {
    const AvgPool2dParams p{.kernel = {2, 2}, .padding = {1, 0}, .count_include_pad = include_pad};
    const Buffer x(device(), DType::f32, empty);
    Buffer y(device(), DType::f32, out);
    kernels().pooling.avg_pool2d(stream, p, x.view(), y.view());
    expect_equal(y.values(), std::vector<double>(2, include_pad ? 0 : kNaN));
  }
}

// Neighbouring channels share a thread on CUDA.
TEST_P(Averages, AChannelDoesNotTellWhetherAnotherIsFinite) {
  const AvgCase c{{1, 8, 3, 3}, {1, 8, 1, 1}, {.kernel = {3, 3}}};
  const auto average = [&](const std::vector<double>& values) {
    const Buffer x(device(), DType::f32, c.x, format_strides(c.x, MemoryFormat::nhwc), values);
    Buffer y(device(), DType::f32, c.y, format_strides(c.y, MemoryFormat::nhwc));
    kernels().pooling.avg_pool2d(stream, c.p, x.view(), y.view());
    return y.values();
  };
  // Added up in f32 the small numbers vanish beside 1, in f64 they do not.
  std::vector<double> values(72, 0x1p-24);
  for (std::size_t channel = 0; channel < 8; ++channel) values[channel * 9] = 1;
  const std::vector<double> want = average(values);
  values[4] = std::numeric_limits<double>::infinity();
  const std::vector<double> got = average(values);
  for (std::size_t channel = 1; channel < 8; ++channel) EXPECT_EQ(got[channel], want[channel]);
}

}  // namespace
}  // namespace weft::testing
