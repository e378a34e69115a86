// Max pooling in both layouts against a loop over windows. Comparing is exact; gradients add up
// small integers, which is exact, too.
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
          if (winner < 0 || v > best || (v != v && best == best)) best = v, winner = h * width + w;
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

TEST_P(Pooling, TheFirstNaNWins) {
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

// With dilation a window may hold no pixel at all; nothing outside the image is read.
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
    expect_equal(index.values(), {0, 0});
  }
}

}  // namespace
}  // namespace weft::testing
