// Pooling in both layouts against a loop over windows. Comparing is exact; gradients of max pooling
// add up small integers, which is exact, too.
#include "weft/tests/kernels/targets.h"

namespace weft::testing {
namespace {

struct PoolCase {
  Shape x;
  Pool2dParams p;
};

std::int64_t out_size(const PoolCase& c, int axis) {
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
  };
  return all;
}

class Pooling : public TargetTest {
 protected:
  static Strides strides_of(const Shape& shape, MemoryFormat format) {
    return format == MemoryFormat::nhwc ? channels_last_strides(shape) : contiguous_strides(shape);
  }

  void check(const PoolCase& c, DType dtype, MemoryFormat format, std::vector<double> values) {
    SCOPED_TRACE(to_string(c.x) + (format == MemoryFormat::nhwc ? " nhwc " : " nchw ") +
                 to_string(dtype));
    const Shape out{c.x[0], c.x[1], out_size(c, 0), out_size(c, 1)};
    const std::int64_t height = c.x[2], width = c.x[3];
    std::vector<double> want, winners, want_grad(values.size(), 0), grads;
    for (std::int64_t i = 0; i < numel(out); ++i) {
      const std::int64_t ow = i % out[3], oh = i / out[3] % out[2], plane = i / out[3] / out[2];
      double best = 0;
      std::int64_t winner = -1;
      for (std::int64_t r = 0; r < c.p.kernel[0]; ++r) {
        for (std::int64_t s = 0; s < c.p.kernel[1]; ++s) {
          const std::int64_t h = oh * c.p.stride[0] - c.p.padding[0] + r * c.p.dilation[0];
          const std::int64_t w = ow * c.p.stride[1] - c.p.padding[1] + s * c.p.dilation[1];
          if (h < 0 || h >= height || w < 0 || w >= width) continue;
          const double v = values[static_cast<std::size_t>((plane * height + h) * width + w)];
          if (winner < 0 || v > best || v != v) best = v, winner = h * width + w;
        }
      }
      want.push_back(best);
      winners.push_back(static_cast<double>(winner));
      grads.push_back(static_cast<double>(i % 5 + 1));
      want_grad[static_cast<std::size_t>(plane * height * width + winner)] += grads.back();
    }
    const Buffer x(device(), dtype, c.x, strides_of(c.x, format), values);
    Buffer y(device(), dtype, out, strides_of(out, format));
    Buffer index(device(), DType::i32, out, strides_of(out, format));
    kernels().pooling.max_pool2d(stream, c.p, x.view(), y.view(), index.view());
    expect_equal(y.values(), want);
    expect_equal(index.values(), winners);

    const Buffer grad_y(device(), dtype, out, strides_of(out, format), grads);
    Buffer grad_x(device(), dtype, c.x, strides_of(c.x, format));
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
        // Few different values: at a tie the first wins.
        check(c, dtype, format, rounded(DType::i32, random_values(numel(c.x), -2, 3, 10)));
        // All far below zero: padding must not win.
        check(c, dtype, format, values_for(dtype, numel(c.x), -9, -8, 11));
      }
    }
  }
}

TEST_P(Pooling, TheLastNaNWins) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const PoolCase c{{2, 20, 6, 6}, {.kernel = {3, 3}, .stride = {3, 3}}};
  for (const DType dtype : kFloating) {
    for (const MemoryFormat format : {MemoryFormat::nchw, MemoryFormat::nhwc}) {
      std::vector<double> v = values_for(dtype, numel(c.x), -3, 3, 9);
      for (std::size_t i = 5; i < v.size(); i += 11) v[i] = nan;
      check(c, dtype, format, v);
    }
  }
}

// With dilation a window may hold no pixel at all; nothing outside the image is read, and no pixel
// gets the window's gradient. (PyTorch's value is the same, its index lies outside the image.)
TEST_P(Pooling, AWindowOfPaddingAlone) {
  const Pool2dParams p{.kernel = {2, 2}, .stride = {1, 1}, .padding = {1, 1}, .dilation = {2, 2}};
  for (const MemoryFormat format : {MemoryFormat::nchw, MemoryFormat::nhwc}) {
    const Shape shape{1, 2, 1, 1};
    const Buffer x(device(), DType::f32, shape, strides_of(shape, format),
                   std::vector<double>{3, 4});
    Buffer y(device(), DType::f32, shape, strides_of(shape, format));
    Buffer index(device(), DType::i32, shape, strides_of(shape, format));
    kernels().pooling.max_pool2d(stream, p, x.view(), y.view(), index.view());
    const double inf = std::numeric_limits<double>::infinity();
    expect_equal(y.values(), {-inf, -inf});
    expect_equal(index.values(), {-1, -1});
    const Buffer grad_y(device(), DType::f32, shape, strides_of(shape, format),
                        std::vector<double>{5, 6});
    Buffer grad_x(device(), DType::f32, shape, strides_of(shape, format));
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

TEST_P(Pooling, Averages) {
  for (const AvgCase& c : avg_cases()) {
    const std::int64_t height = c.x[2], width = c.x[3];
    for (const DType dtype : kFloating) {
      const std::vector<double> values = values_for(dtype, numel(c.x), -3, 3, 1);
      const std::vector<double> grads = values_for(dtype, numel(c.y), -3, 3, 2);
      std::vector<double> want, sizes, want_grad(values.size(), 0), grad_sizes(values.size(), 0);
      for (std::int64_t i = 0; i < numel(c.y); ++i) {
        const std::int64_t at[2] = {i / c.y[3] % c.y[2], i % c.y[3]};
        const std::int64_t plane = i / c.y[3] / c.y[2];
        std::int64_t from[2], to[2], count = 1;
        for (int d = 0; d < 2; ++d) {
          const std::int64_t in = c.x[2 + d], out = c.y[2 + d];
          from[d] = at[d] * c.p.stride[d] - c.p.padding[d];
          to[d] = std::min(from[d] + c.p.kernel[d], in + c.p.padding[d]);
          if (c.p.adaptive) {
            from[d] = at[d] * in / out;
            to[d] = ((at[d] + 1) * in + out - 1) / out;
          }
          if (c.p.count_include_pad) count *= to[d] - from[d];
          from[d] = std::max<std::int64_t>(from[d], 0);
          to[d] = std::min(to[d], in);
          if (!c.p.count_include_pad) count *= to[d] - from[d];
        }
        if (c.p.divisor != 0) count = c.p.divisor;
        double sum = 0, size = 0;
        for (std::int64_t h = from[0]; h < to[0]; ++h) {
          for (std::int64_t w = from[1]; w < to[1]; ++w) {
            const auto j = static_cast<std::size_t>((plane * height + h) * width + w);
            const double share = grads[static_cast<std::size_t>(i)] / static_cast<double>(count);
            sum += values[j];
            size += std::abs(values[j]);
            want_grad[j] += share;
            grad_sizes[j] += std::abs(share);
          }
        }
        want.push_back(sum / static_cast<double>(count));
        sizes.push_back(size / static_cast<double>(count));
      }
      // A vector kernel may add up 16 terms in f32; the rest runs in f64, where a window's terms
      // are at most 600.
      const double terms = dtype == DType::f64 ? 600 : 16;
      const auto check = [&](const std::vector<double>& got, const std::vector<double>& expected,
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
        const Buffer x(device(), dtype, c.x, strides_of(c.x, format), values);
        Buffer y(device(), dtype, c.y, strides_of(c.y, format));
        kernels().pooling.avg_pool2d(stream, c.p, x.view(), y.view());
        check(y.values(), want, sizes);
        const Buffer grad_y(device(), dtype, c.y, strides_of(c.y, format), grads);
        Buffer grad_x(device(), dtype, c.x, strides_of(c.x, format));
        kernels().pooling.avg_pool2d_backward(stream, c.p, grad_y.view(), grad_x.view());
        check(grad_x.values(), want_grad, grad_sizes);
      }
    }
  }
}

}  // namespace
}  // namespace weft::testing
