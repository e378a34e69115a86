// Convolution, its transpose and max pooling, against loops over the definition.
#include <cmath>
#include <limits>

#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/device_param.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::for_each_index;
using testing::kFloating;
using testing::layouts;
using testing::make;
using testing::near_values;
using testing::position;
using testing::some;
using testing::values_of;
using testing::with_gaps;

class ConvTest : public testing::DeviceParam {};
WEFT_FOR_EACH_DEVICE(ConvTest);

// Calls f(x index, w index, y index) for every product that a convolution sums up.
template <class F>
void for_each_product(const Shape& x, const Shape& w, const Shape& y, const Conv2dParams& p, F f) {
  const Shape& small = p.transposed ? x : y;  // the side that the window steps over
  const Shape& large = p.transposed ? y : x;
  const std::int64_t per_group = w[1];  // channels of the large side
  const std::int64_t outer_per_group = w[0] / p.groups;
  for_each_index(w, [&](const Dims& iw) {
    const std::int64_t group = iw[0] / outer_per_group;
    for (std::int64_t n = 0; n < x[0]; ++n) {
      for (std::int64_t i = 0; i < small[2]; ++i) {
        for (std::int64_t j = 0; j < small[3]; ++j) {
          const std::int64_t h = i * p.stride[0] - p.padding[0] + iw[2] * p.dilation[0];
          const std::int64_t v = j * p.stride[1] - p.padding[1] + iw[3] * p.dilation[1];
          if (h < 0 || h >= large[2] || v < 0 || v >= large[3]) continue;
          const Dims is = {n, iw[0], i, j};
          const Dims il = {n, group * per_group + iw[1], h, v};
          f(p.transposed ? is : il, iw, p.transposed ? il : is);
        }
      }
    }
  });
}

struct Case {
  const char* name;
  Shape x, w, y;
  Conv2dParams params;
};

std::vector<Case> cases() {
  const auto with = [](auto change) {
    Conv2dParams p;
    change(p);
    return p;
  };
  return {
      {"plain", {2, 3, 5, 6}, {4, 3, 3, 3}, {2, 4, 3, 4}, {}},
      {"one_by_one", {2, 3, 4, 4}, {5, 3, 1, 1}, {2, 5, 4, 4}, {}},
      {"one_channel", {2, 1, 6, 6}, {8, 1, 3, 3}, {2, 8, 4, 4}, {}},
      {"one_pixel", {3, 4, 1, 1}, {2, 4, 1, 1}, {3, 2, 1, 1}, {}},
      {"whole_window", {2, 3, 4, 4}, {2, 3, 4, 4}, {2, 2, 1, 1}, {}},
      {"strided", {2, 3, 7, 8}, {4, 3, 3, 2}, {2, 4, 3, 4}, with([](auto& p) {
         p.stride = {2, 2};
       })},
      {"padded", {1, 2, 4, 5}, {3, 2, 3, 3}, {1, 3, 4, 7}, with([](auto& p) {
         p.padding = {1, 2};
       })},
      {"dilated", {1, 2, 7, 9}, {3, 2, 3, 2}, {1, 3, 3, 6}, with([](auto& p) {
         p.dilation = {2, 3};
       })},
      {"grouped", {2, 4, 5, 5}, {6, 2, 3, 3}, {2, 6, 3, 3}, with([](auto& p) { p.groups = 2; })},
      {"depthwise", {2, 4, 5, 5}, {4, 1, 3, 3}, {2, 4, 5, 5}, with([](auto& p) {
         p.groups = 4;
         p.padding = {1, 1};
       })},
      {"transposed", {2, 3, 4, 5}, {3, 2, 3, 3}, {2, 2, 6, 7}, with([](auto& p) {
         p.transposed = true;
       })},
      {"transposed_strided", {2, 3, 3, 4}, {3, 2, 3, 3}, {2, 2, 6, 8}, with([](auto& p) {
         p.transposed = true;
         p.stride = {2, 2};
         p.padding = {1, 1};
         p.output_padding = {1, 1};
       })},
      {"transposed_grouped", {1, 4, 3, 3}, {4, 3, 2, 2}, {1, 6, 5, 5}, with([](auto& p) {
         p.transposed = true;
         p.groups = 2;
         p.dilation = {2, 2};
       })},
      {"transposed_to_one_channel", {2, 8, 4, 4}, {8, 1, 3, 3}, {2, 1, 6, 6}, with([](auto& p) {
         p.transposed = true;
       })},
  };
}

// Of f32, where factors keep 10 bits of their fractions: sums of up to 40 products below 1.
constexpr double kTf32Tolerance = 40 * 0x1p-10;

TEST_P(ConvTest, ForwardInTf32) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const Tensor x = some(c.x, DType::f32, -1, 1, 1), w = some(c.w, DType::f32, -1, 1, 2);
    const Tensor y = raw::conv2d(x, w, {}, c.params);
    const Scoped ieee(&ThreadState::allow_tf32_conv, false);
    const Tensor exact = raw::conv2d(x, w, {}, c.params);
    EXPECT_TRUE(near_values(y, values_of(exact), kTf32Tolerance));
  }
}

TEST_P(ConvTest, Forward) {
  const Scoped ieee(&ThreadState::allow_tf32_conv, false);
  for (const Case& c : cases()) {
    for (DType dtype : kFloating) {
      SCOPED_TRACE(std::string(c.name) + " " + to_string(dtype));
      const Tensor base = some(c.x, dtype, -1, 1, 1), w = some(c.w, dtype, -1, 1, 2);
      const Tensor bias = some({c.y[1]}, dtype, -1, 1, 3);
      const std::vector<double> xs = values_of(base), ws = values_of(w), bs = values_of(bias);
      std::vector<double> want(numel(c.y));
      for_each_product(c.x, c.w, c.y, c.params, [&](const Dims& x, const Dims& k, const Dims& y) {
        want[position(c.y, y)] += xs[position(c.x, x)] * ws[position(c.w, k)];
      });
      std::vector<double> biased = want;
      for_each_index(c.y, [&](const Dims& at) { biased[position(c.y, at)] += bs[at[1]]; });
      std::vector<Tensor> inputs = layouts(base);
      inputs.push_back(raw::contiguous(base, MemoryFormat::nhwc));
      for (const Tensor& x : inputs) {
        const Tensor y = raw::conv2d(x, w, {}, c.params);
        EXPECT_EQ(y.shape(), c.y);
        EXPECT_TRUE(y.is_contiguous() || y.is_channels_last());
        EXPECT_TRUE(near_values(y, want, testing::tolerance(dtype)));
        EXPECT_TRUE(near_values(raw::conv2d(x, with_gaps(w), bias, c.params), biased,
                                testing::tolerance(dtype)));
      }
    }
  }
}

TEST_P(ConvTest, Backward) {
  const Scoped ieee(&ThreadState::allow_tf32_conv, false);
  for (const Case& c : cases()) {
    for (DType dtype : kFloating) {
      SCOPED_TRACE(std::string(c.name) + " " + to_string(dtype));
      const Tensor base = some(c.x, dtype, -1, 1, 1), w = some(c.w, dtype, -1, 1, 2);
      const Tensor grad = some(c.y, dtype, -1, 1, 3);
      const std::vector<double> xs = values_of(base), ws = values_of(w), gs = values_of(grad);
      std::vector<double> dx(numel(c.x)), dw(numel(c.w)), db(c.y[1]);
      for_each_product(c.x, c.w, c.y, c.params, [&](const Dims& x, const Dims& k, const Dims& y) {
        dx[position(c.x, x)] += gs[position(c.y, y)] * ws[position(c.w, k)];
        dw[position(c.w, k)] += gs[position(c.y, y)] * xs[position(c.x, x)];
      });
      for_each_index(c.y, [&](const Dims& at) { db[at[1]] += gs[position(c.y, at)]; });
      std::vector<Tensor> inputs = layouts(base), grads = layouts(grad);
      inputs.push_back(raw::contiguous(base, MemoryFormat::nhwc));
      grads.push_back(raw::contiguous(grad, MemoryFormat::nhwc));
      const double relative = 4 * testing::tolerance(dtype);
      for (const Tensor& g : grads) {
        const Tensor got = raw::conv2d_backward_data(g, with_gaps(w), c.x, c.params);
        EXPECT_EQ(got.shape(), c.x);
        EXPECT_TRUE(near_values(got, dx, relative));
        for (const Tensor& x : inputs) {
          const auto [gw, gb] = raw::conv2d_backward_weights(x, g, c.w, true, c.params);
          EXPECT_EQ(gw.shape(), c.w);
          EXPECT_TRUE(gw.is_contiguous());
          EXPECT_TRUE(near_values(gw, dw, relative));
          EXPECT_TRUE(near_values(gb, db, relative));
          const auto without = raw::conv2d_backward_weights(x, g, c.w, false, c.params);
          EXPECT_FALSE(without.second.defined());
          EXPECT_TRUE(near_values(without.first, dw, relative));
        }
      }
    }
  }
}

TEST_P(ConvTest, OfNothing) {
  const Tensor w = ones({4, 3, 3, 3}), bias = ones({4});
  EXPECT_EQ(raw::conv2d(zeros({0, 3, 5, 5}), w, bias, {}).shape(), (Shape{0, 4, 3, 3}));
  EXPECT_EQ(raw::conv2d_backward_data(zeros({0, 4, 3, 3}), w, {0, 3, 5, 5}, {}).shape(),
            (Shape{0, 3, 5, 5}));
  const auto [gw, gb] = raw::conv2d_backward_weights(zeros({0, 3, 5, 5}), zeros({0, 4, 3, 3}),
                                                     {4, 3, 3, 3}, true, {});
  EXPECT_EQ(values_of(gw), std::vector<double>(108));
  EXPECT_EQ(values_of(gb), std::vector<double>(4));
  EXPECT_TENSOR(raw::conv2d(zeros({1, 0, 2, 2}), zeros({2, 0, 2, 2}), make({3, 4}, {2}), {}),
                ({1, 2, 1, 1}), {3, 4});
}

TEST_P(ConvTest, Errors) {
  const auto conv = [](const Shape& x, const Shape& w, Conv2dParams p = {}) {
    return raw::conv2d(ones(x), ones(w), {}, p);
  };
  EXPECT_WEFT_ERROR(
      conv({8, 3, 32, 32}, {16, 16, 3, 3}), Shape,
      "[conv2d] input channels: got 3, weight expects 16 (x [8,3,32,32], w [16,16,3,3])");
  EXPECT_WEFT_ERROR(conv({3, 32, 32}, {16, 3, 3, 3}), Shape,
                    "[conv2d] input: got [3,32,32], expected [N,C,H,W]");
  EXPECT_WEFT_ERROR(conv({1, 3, 2, 5}, {1, 3, 3, 3}), Shape,
                    "[conv2d] window: 3 is larger than the input, 2 padded by 0 on both sides");
  EXPECT_WEFT_ERROR(conv({1, 3, 5, 5}, {1, 3, 3}), Shape, "[conv2d] weight: got [1,3,3]");
  EXPECT_WEFT_ERROR(conv({1, 3, 5, 5}, {1, 3, 0, 3}), Shape, "[conv2d] empty window");
  Conv2dParams p;
  p.groups = 2;
  EXPECT_WEFT_ERROR(conv({1, 4, 5, 5}, {3, 2, 3, 3}, p), Shape,
                    "[conv2d] output channels: 3 cannot be divided into 2 groups");
  EXPECT_WEFT_ERROR(conv({1, 3, 5, 5}, {4, 2, 3, 3}, p), Shape,
                    "weight expects 4 (x [1,3,5,5], w [4,2,3,3], groups 2)");
  p = {};
  p.stride = {0, 1};
  EXPECT_WEFT_ERROR(conv({1, 3, 5, 5}, {1, 3, 3, 3}, p), InvalidArgument,
                    "[conv2d] stride: got (0, 1), at least 1 is needed");
  p = {};
  p.padding = {0, -1};
  EXPECT_WEFT_ERROR(conv({1, 3, 5, 5}, {1, 3, 3, 3}, p), InvalidArgument,
                    "[conv2d] padding: got (0, -1)");
  p = {};
  p.output_padding = {1, 0};
  EXPECT_WEFT_ERROR(conv({1, 3, 5, 5}, {1, 3, 3, 3}, p), InvalidArgument,
                    "output_padding belongs to");
  p.transposed = true;
  EXPECT_WEFT_ERROR(conv({1, 3, 5, 5}, {3, 1, 3, 3}, p), InvalidArgument,
                    "[conv_transpose2d] output_padding 1 must be smaller than stride 1");
  p = {};
  p.transposed = true;
  EXPECT_WEFT_ERROR(conv({1, 3, 5, 5}, {4, 1, 3, 3}, p), Shape,
                    "[conv_transpose2d] input channels: got 3, weight expects 4");
  p.padding = {2, 2};
  EXPECT_WEFT_ERROR(conv({1, 3, 1, 1}, {3, 1, 3, 3}, p), Shape, "the result would be empty");
  EXPECT_WEFT_ERROR(raw::conv2d(ones({1, 1, 3, 3}), ones({2, 1, 3, 3}), ones({3}), {}), Shape,
                    "[conv2d] bias: got [3], expected [2]");
  EXPECT_WEFT_ERROR(raw::conv2d(ones({1, 1, 3, 3}), ones({2, 1, 3, 3}, DType::f64), {}, {}), Dtype,
                    "[conv2d] dtype: x is f32, w is f64");
  EXPECT_WEFT_ERROR(
      raw::conv2d(ones({1, 1, 3, 3}, DType::i64), ones({2, 1, 3, 3}, DType::i64), {}, {}), Dtype,
      "[conv2d] needs a floating dtype");
  EXPECT_WEFT_ERROR(
      raw::conv2d_backward_data(ones({1, 2, 2, 2}), ones({2, 1, 3, 3}), {1, 1, 3, 3}, {}), Shape,
      "[conv2d] gradient: got [1,2,2,2], the output is [1,2,1,1]");
}

// --- Max pooling ---------------------------------------------------------------------------------

struct PoolCase {
  Shape x, y;
  Pool2dParams params;
};

std::vector<PoolCase> pool_cases() {
  return {
      {{2, 3, 4, 6}, {2, 3, 2, 3}, {.kernel = {2, 2}, .stride = {2, 2}}},
      {{1, 2, 5, 5}, {1, 2, 3, 3}, {.kernel = {3, 3}, .stride = {1, 1}}},
      {{2, 1, 5, 7}, {2, 1, 3, 4}, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}}},
      {{1, 2, 5, 5}, {1, 2, 2, 2}, {.kernel = {2, 2}, .stride = {2, 2}}},
      {{1, 2, 5, 5}, {1, 2, 3, 3}, {.kernel = {2, 2}, .stride = {2, 2}, .ceil_mode = true}},
      {{1, 3, 7, 7}, {1, 3, 3, 3}, {.kernel = {3, 3}, .stride = {1, 1}, .dilation = {2, 2}}},
      {{1, 3, 3, 3}, {1, 3, 1, 1}, {.kernel = {3, 3}, .stride = {1, 1}}},
      // The third window would begin behind the input: it is dropped.
      {{1, 1, 3, 3},
       {1, 1, 2, 2},
       {.kernel = {2, 2}, .stride = {2, 2}, .padding = {1, 1}, .ceil_mode = true}},
      {{0, 3, 4, 4}, {0, 3, 2, 2}, {.kernel = {2, 2}, .stride = {2, 2}}},
  };
}

TEST_P(ConvTest, MaxPool) {
  for (const PoolCase& c : pool_cases()) {
    const Pool2dParams& p = c.params;
    for (DType dtype : kFloating) {
      SCOPED_TRACE(to_string(c.x) + " " + to_string(dtype));
      const Tensor base = some(c.x, dtype, -1, 1, 1), grad = some(c.y, dtype, -1, 1, 2);
      const std::vector<double> xs = values_of(base), gs = values_of(grad);
      std::vector<double> want, want_index, dx(numel(c.x));
      for_each_index(c.y, [&](const Dims& at) {
        double best = -std::numeric_limits<double>::infinity();
        std::int64_t where = -1;
        for (std::int64_t r = 0; r < p.kernel[0]; ++r) {
          for (std::int64_t s = 0; s < p.kernel[1]; ++s) {
            const std::int64_t h = at[2] * p.stride[0] - p.padding[0] + r * p.dilation[0];
            const std::int64_t w = at[3] * p.stride[1] - p.padding[1] + s * p.dilation[1];
            if (h < 0 || w < 0 || h >= c.x[2] || w >= c.x[3]) continue;
            const double v = xs[position(c.x, {at[0], at[1], h, w})];
            if (v > best) best = v, where = h * c.x[3] + w;
          }
        }
        want.push_back(best);
        want_index.push_back(static_cast<double>(where));
        dx[position(c.x, {at[0], at[1], where / c.x[3], where % c.x[3]})] += gs[position(c.y, at)];
      });
      std::vector<Tensor> inputs = layouts(base), grads = layouts(grad);
      inputs.push_back(raw::contiguous(base, MemoryFormat::nhwc));
      grads.push_back(raw::contiguous(grad, MemoryFormat::nhwc));
      for (const Tensor& x : inputs) {
        const auto [y, index] = raw::max_pool2d(x, p);
        EXPECT_EQ(y.shape(), c.y);
        EXPECT_EQ(index.dtype(), DType::i32);
        EXPECT_EQ(values_of(y), want);
        EXPECT_EQ(values_of(index), want_index);
        EXPECT_TRUE(y.is_channels_last() || !x.is_channels_last());
        for (const Tensor& g : grads) {
          EXPECT_TRUE(near_values(raw::max_pool2d_backward(g, index, c.x, p), dx,
                                  testing::tolerance(dtype)));
        }
      }
    }
  }
}

TEST_P(ConvTest, MaxPoolTiesAndNaN) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Pool2dParams p{.kernel = {2, 2}, .stride = {2, 2}};
  const auto [y, index] = raw::max_pool2d(make({1, 1, 5, nan, 1, 1, 6, 2}, {1, 1, 2, 4}), p);
  EXPECT_TRUE(near_values(y, {1, nan}, 0));
  EXPECT_TENSOR(index, ({1, 1, 1, 2}), {0, 3});
  // Of several NaN the last has the gradient, as in PyTorch.
  const auto [last, at] = raw::max_pool2d(make({nan, nan, 5, nan, 1, 2}, {1, 1, 3, 2}),
                                          {.kernel = {3, 2}, .stride = {1, 1}});
  EXPECT_TRUE(near_values(last, {nan}, 0));
  EXPECT_TENSOR(at, ({1, 1, 1, 1}), {3});
}

// PyTorch's results for torch.arange(9.).view(1, 1, 3, 3).
TEST_P(ConvTest, PoolingWindowsLargerThanTheImage) {
  const Tensor x = raw::reshape(arange(0, 9, 1, DType::f32), {1, 1, 3, 3});
  const auto largest = [&](std::int64_t kernel, std::int64_t stride, std::int64_t padding) {
    return raw::max_pool2d(x, {.kernel = {kernel, kernel},
                               .stride = {stride, stride},
                               .padding = {padding, padding},
                               .ceil_mode = true})
        .first;
  };
  EXPECT_TENSOR(largest(4, 2, 0), ({1, 1, 1, 1}), {8});
  EXPECT_TENSOR(largest(8, 6, 0), ({1, 1, 1, 1}), {8});
  EXPECT_TENSOR(largest(5, 3, 1), ({1, 1, 1, 1}), {8});
  EXPECT_WEFT_ERROR(largest(5, 2, 0), Shape, "[max_pool2d] window: 5 is larger than the input, 3");
  EXPECT_WEFT_ERROR(largest(4, 1, 0), Shape, "[max_pool2d] window: 4 is larger than the input, 3");
  const AvgPool2dParams mean{
      .kernel = {7, 7}, .stride = {3, 3}, .padding = {1, 1}, .ceil_mode = true};
  EXPECT_NEAR_TENSOR(raw::avg_pool2d(x, mean), (Shape{1, 1, 1, 1}), (std::vector<double>{1.44}));
  AvgPool2dParams inside = mean;
  inside.count_include_pad = false;
  EXPECT_NEAR_TENSOR(raw::avg_pool2d(x, inside), (Shape{1, 1, 1, 1}), (std::vector<double>{4}));
  EXPECT_NEAR_TENSOR(raw::avg_pool2d_backward(full({1, 1, 1, 1}, 25), {1, 1, 3, 3}, mean),
                     (Shape{1, 1, 3, 3}), (std::vector<double>(9, 1)));
  const auto [y, index] =
      raw::max_pool2d(x, {.kernel = {4, 4}, .stride = {2, 2}, .ceil_mode = true});
  EXPECT_TENSOR(raw::max_pool2d_backward(y, index, {1, 1, 3, 3},
                                         {.kernel = {4, 4}, .stride = {2, 2}, .ceil_mode = true}),
                ({1, 1, 3, 3}), {0, 0, 0, 0, 0, 0, 0, 0, 8});
}

TEST_P(ConvTest, MaxPoolErrors) {
  const Pool2dParams p{.kernel = {2, 2}, .stride = {2, 2}};
  EXPECT_WEFT_ERROR(raw::max_pool2d(ones({3, 4, 4}), p), Shape,
                    "[max_pool2d] input: got [3,4,4], expected [N,C,H,W]");
  EXPECT_WEFT_ERROR(raw::max_pool2d(ones({1, 1, 1, 4}), p), Shape,
                    "[max_pool2d] window: 2 is larger than the input, 1 padded by 0");
  EXPECT_WEFT_ERROR(raw::max_pool2d(ones({1, 1, 4, 4}, DType::i64), p), Dtype,
                    "needs a floating dtype");
  Pool2dParams bad = p;
  bad.padding = {2, 0};
  EXPECT_WEFT_ERROR(raw::max_pool2d(ones({1, 1, 4, 4}), bad), InvalidArgument,
                    "[max_pool2d] padding 2 is more than half of the window, 2");
  bad = p;
  bad.stride = {0, 1};
  EXPECT_WEFT_ERROR(raw::max_pool2d(ones({1, 1, 4, 4}), bad), InvalidArgument,
                    "[max_pool2d] stride: got (0, 1), at least 1 is needed");
  const auto [y, index] = raw::max_pool2d(ones({1, 1, 4, 4}), p);
  EXPECT_WEFT_ERROR(raw::max_pool2d_backward(ones({1, 1, 3, 3}), index, {1, 1, 4, 4}, p), Shape,
                    "[max_pool2d] gradient: got [1,1,3,3], the output is [1,1,2,2]");
  EXPECT_WEFT_ERROR(raw::max_pool2d_backward(y, y, {1, 1, 4, 4}, p), InvalidArgument,
                    "[max_pool2d] index: got f32 [1,1,2,2], expected i32 [1,1,2,2]");
}

// --- Average pooling -----------------------------------------------------------------------------

struct AvgPoolCase {
  Shape x, y;
  AvgPool2dParams params;
};

std::vector<AvgPoolCase> avg_pool_cases() {
  return {
      {{2, 3, 4, 6}, {2, 3, 2, 3}, {.kernel = {2, 2}, .stride = {2, 2}}},
      {{1, 2, 5, 5}, {1, 2, 5, 4}, {.kernel = {3, 2}, .stride = {1, 1}, .padding = {1, 0}}},
      // The last window reaches beyond the padding; that part does not count.
      {{2, 1, 5, 6},
       {2, 1, 3, 3},
       {.kernel = {3, 3}, .stride = {2, 3}, .padding = {1, 1}, .ceil_mode = true}},
      {{1, 2, 5, 5},
       {1, 2, 5, 5},
       {.kernel = {3, 3}, .padding = {1, 1}, .count_include_pad = false}},
      {{1, 2, 4, 4}, {1, 2, 2, 2}, {.kernel = {2, 2}, .stride = {2, 2}, .divisor = 3}},
      {{2, 3, 5, 7}, {2, 3, 1, 1}, {.adaptive = true}},
      {{2, 3, 5, 7}, {2, 3, 3, 2}, {.adaptive = true}},
      {{1, 2, 2, 3}, {1, 2, 4, 3}, {.adaptive = true}},
      {{0, 3, 4, 4}, {0, 3, 2, 2}, {.kernel = {2, 2}, .stride = {2, 2}}},
  };
}

TEST_P(ConvTest, AvgPool) {
  for (const AvgPoolCase& c : avg_pool_cases()) {
    const AvgPool2dParams& p = c.params;
    for (DType dtype : kFloating) {
      SCOPED_TRACE(to_string(c.x) + " to " + to_string(c.y) + " " + to_string(dtype));
      const Tensor base = some(c.x, dtype, -1, 1, 1), grad = some(c.y, dtype, -1, 1, 2);
      const std::vector<double> xs = values_of(base), gs = values_of(grad);
      std::vector<double> want, dx(numel(c.x));
      for_each_index(c.y, [&](const Dims& at) {
        std::int64_t from[2], to[2], counted = 1;
        for (int i = 0; i < 2; ++i) {
          const std::int64_t o = at[2 + i], in = c.x[2 + i], out = c.y[2 + i];
          if (p.adaptive) {
            from[i] = o * in / out;
            to[i] = (o * in + in + out - 1) / out;
            counted *= to[i] - from[i];
            continue;
          }
          from[i] = o * p.stride[i] - p.padding[i];
          to[i] = std::min(from[i] + p.kernel[i], in + p.padding[i]);
          if (p.count_include_pad) counted *= to[i] - from[i];
          from[i] = std::max<std::int64_t>(from[i], 0);
          to[i] = std::min(to[i], in);
          if (!p.count_include_pad) counted *= to[i] - from[i];
        }
        if (p.divisor) counted = p.divisor;
        double sum = 0;
        for (std::int64_t h = from[0]; h < to[0]; ++h) {
          for (std::int64_t w = from[1]; w < to[1]; ++w) {
            const std::size_t i = position(c.x, {at[0], at[1], h, w});
            sum += xs[i];
            dx[i] += gs[position(c.y, at)] / static_cast<double>(counted);
          }
        }
        want.push_back(sum / static_cast<double>(counted));
      });
      std::vector<Tensor> inputs = layouts(base), grads = layouts(grad);
      inputs.push_back(raw::contiguous(base, MemoryFormat::nhwc));
      grads.push_back(raw::contiguous(grad, MemoryFormat::nhwc));
      for (const Tensor& x : inputs) {
        const Tensor y =
            p.adaptive ? raw::adaptive_avg_pool2d(x, {c.y[2], c.y[3]}) : raw::avg_pool2d(x, p);
        EXPECT_NEAR_TENSOR(y, c.y, want);
        EXPECT_TRUE(y.is_channels_last() || !x.is_channels_last());
      }
      for (const Tensor& g : grads) {
        EXPECT_NEAR_TENSOR(raw::avg_pool2d_backward(g, c.x, p), c.x, dx);
      }
    }
  }
}

// Against windows one after the other; ties and NaN as in max_pool2d.
TEST_P(ConvTest, AdaptiveMaxPool) {
  struct Case {
    Shape x;
    std::array<std::int64_t, 2> size;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const Case& c : {Case{{2, 3, 5, 7}, {3, 2}}, Case{{1, 9, 4, 4}, {1, 1}},
                        Case{{2, 1, 2, 3}, {4, 5}}, Case{{1, 1, 1, 1}, {2, 1}}}) {
    for (const DType dtype : kFloating) {
      Tensor base = some(c.x, DType::i32, -2, 2);  // few different values
      base = raw::to(base, dtype);
      if (base.numel() > 4) raw::fill_(raw::select(raw::select(base, 3, 1), 2, 0), nan);
      const Shape pooled{c.x[0], c.x[1], c.size[0], c.size[1]};
      const Tensor grad = raw::to(some(pooled, DType::i32, 1, 5, 2), dtype);
      const std::vector<double> xs = values_of(base), gs = values_of(grad);
      std::vector<double> want, winners, dx(xs.size(), 0);
      testing::for_each_index(pooled, [&](const Dims& at) {
        double best = 0;
        std::int64_t winner = -1;
        const auto low = [&](int i) { return at[2 + i] * c.x[2 + i] / c.size[i]; };
        const auto high = [&](int i) {
          return ((at[2 + i] + 1) * c.x[2 + i] + c.size[i] - 1) / c.size[i];
        };
        for (std::int64_t h = low(0); h < high(0); ++h) {
          for (std::int64_t w = low(1); w < high(1); ++w) {
            const double v = xs[position(c.x, {at[0], at[1], h, w})];
            if (winner < 0 || v > best || v != v) best = v, winner = h * c.x[3] + w;
          }
        }
        want.push_back(best);
        winners.push_back(static_cast<double>(winner));
        dx[position(c.x, {at[0], at[1], winner / c.x[3], winner % c.x[3]})] +=
            gs[position(pooled, at)];
      });
      std::vector<Tensor> inputs = layouts(base);
      inputs.push_back(raw::contiguous(base, MemoryFormat::nhwc));
      for (const Tensor& x : inputs) {
        const auto [y, index] = raw::adaptive_max_pool2d(x, c.size);
        EXPECT_EQ(y.shape(), pooled);
        EXPECT_TRUE(near_values(y, want, 0));
        EXPECT_EQ(values_of(index), winners);
        EXPECT_TRUE(
            near_values(raw::max_pool2d_backward(grad, index, c.x, {.adaptive = true}), dx, 0));
      }
    }
  }
  EXPECT_EQ(raw::adaptive_max_pool2d(zeros({0, 2, 3, 3}), {2, 2}).first.shape(),
            (Shape{0, 2, 2, 2}));
  EXPECT_EQ(raw::adaptive_max_pool2d(zeros({1, 2, 3, 3}), {0, 2}).first.shape(),
            (Shape{1, 2, 0, 2}));
  EXPECT_WEFT_ERROR(raw::adaptive_max_pool2d(ones({4, 4}), {1, 1}), Shape,
                    "[adaptive_max_pool2d] input: got [4,4], expected [N,C,H,W]");
  EXPECT_WEFT_ERROR(raw::adaptive_max_pool2d(ones({1, 1, 4, 0}), {1, 1}), Shape,
                    "[adaptive_max_pool2d] input: got [1,1,4,0], which has no pixels");
  EXPECT_WEFT_ERROR(raw::adaptive_max_pool2d(ones({1, 1, 4, 4}), {1, -1}), InvalidArgument,
                    "[adaptive_max_pool2d] size: got 1x-1");
  EXPECT_WEFT_ERROR(raw::adaptive_max_pool2d(ones({1, 1, 4, 4}, DType::i64), {1, 1}), Dtype,
                    "needs a floating dtype");
}

TEST_P(ConvTest, AvgPoolErrors) {
  AvgPool2dParams p{.kernel = {2, 2}, .stride = {2, 2}};
  EXPECT_WEFT_ERROR(raw::avg_pool2d(ones({3, 4, 4}), p), Shape,
                    "[avg_pool2d] input: got [3,4,4], expected [N,C,H,W]");
  EXPECT_WEFT_ERROR(raw::avg_pool2d(ones({1, 1, 1, 4}), p), Shape,
                    "[avg_pool2d] window: 2 is larger than the input, 1 padded by 0");
  EXPECT_WEFT_ERROR(raw::avg_pool2d(ones({1, 1, 4, 4}, DType::i64), p), Dtype,
                    "needs a floating dtype");
  EXPECT_WEFT_ERROR(raw::avg_pool2d_backward(ones({1, 1, 3, 3}), {1, 1, 4, 4}, p), Shape,
                    "[avg_pool2d] gradient: got [1,1,3,3], the output is [1,1,2,2]");
  p.padding = {2, 0};
  EXPECT_WEFT_ERROR(raw::avg_pool2d(ones({1, 1, 4, 4}), p), InvalidArgument,
                    "[avg_pool2d] padding 2 is more than half of the window, 2");
  EXPECT_WEFT_ERROR(raw::adaptive_avg_pool2d(ones({1, 4, 4}), {1, 1}), Shape,
                    "[adaptive_avg_pool2d] input: got [1,4,4], expected [N,C,H,W]");
  EXPECT_WEFT_ERROR(raw::adaptive_avg_pool2d(ones({1, 4, 0, 4}), {1, 1}), Shape,
                    "[adaptive_avg_pool2d] input: got [1,4,0,4], which has no pixels");
  EXPECT_WEFT_ERROR(raw::adaptive_avg_pool2d(ones({1, 4, 4, 4}), {-1, 1}), InvalidArgument,
                    "[adaptive_avg_pool2d] size: got -1x1");
}

// --- Sizes ---------------------------------------------------------------------------------------

constexpr std::int64_t kHuge[] = {kMaxPixels + 1, std::int64_t{1} << 32, std::int64_t{1} << 62,
                                  std::numeric_limits<std::int64_t>::max()};

TEST_P(ConvTest, WindowsOfHugeNumbersAreRefused) {
  const Tensor x = ones({1, 1, 4, 4}), w = ones({1, 1, 2, 2});
  for (const std::int64_t n : kHuge) {
    const std::string got = "(" + std::to_string(n) + ", 1), at most 2147483647 is possible";
    for (const bool transposed : {false, true}) {
      const auto conv = [&](Conv2dParams p) {
        p.transposed = transposed;
        return raw::conv2d(x, w, {}, p);
      };
      EXPECT_WEFT_ERROR(conv({.stride = {n, 1}}), InvalidArgument, "stride: got " + got);
      EXPECT_WEFT_ERROR(conv({.padding = {n, 1}}), InvalidArgument, "padding: got " + got);
      EXPECT_WEFT_ERROR(conv({.dilation = {n, 1}}), InvalidArgument, "dilation: got " + got);
      EXPECT_WEFT_ERROR(conv({.groups = n}), Shape, "");
    }
    const Pool2dParams pools[] = {{.kernel = {n, 1}, .stride = {1, 1}},
                                  {.kernel = {2, 2}, .stride = {n, 1}},
                                  {.kernel = {2, 2}, .stride = {1, 1}, .padding = {n, 1}},
                                  {.kernel = {2, 2}, .stride = {1, 1}, .dilation = {n, 1}},
                                  {.kernel = {n, 1}, .stride = {1, 1}, .padding = {n / 2, 1}}};
    for (const Pool2dParams& p : pools) {
      EXPECT_WEFT_ERROR(raw::max_pool2d(x, p), InvalidArgument, got);
      const AvgPool2dParams mean{.kernel = p.kernel, .stride = p.stride, .padding = p.padding};
      if (p.dilation[0] == 1) EXPECT_WEFT_ERROR(raw::avg_pool2d(x, mean), InvalidArgument, got);
    }
    EXPECT_WEFT_ERROR(raw::adaptive_max_pool2d(x, {n, 1}), Shape, "too large");
    EXPECT_WEFT_ERROR(raw::adaptive_avg_pool2d(x, {1, n}), Shape, "too large");
    EXPECT_WEFT_ERROR(raw::avg_pool2d_backward(x, {1, 1, n, 4}, {}), Shape, "");
    EXPECT_WEFT_ERROR(raw::conv2d_backward_data(x, w, {1, 1, n, 5}, {}), Shape, "");
    EXPECT_WEFT_ERROR(raw::conv2d_backward_weights(x, x, {1, 1, n, 1}, false, {}), Shape, "");
  }
}

TEST_P(ConvTest, ImagesOfTooManyPixelsAreRefused) {
  const Tensor x = ones({1, 1, 4, 4}), w = ones({1, 1, 2, 2});
  const std::int64_t far = 1 << 16;
  EXPECT_WEFT_ERROR(raw::conv2d(x, w, {}, {.padding = {far, far}}), Shape,
                    "[conv2d] too large: images [1,1,4,4] padded by (65536, 65536); one may have "
                    "2147483647 pixels");
  EXPECT_WEFT_ERROR(raw::conv2d(x, w, {}, {.stride = {far, far}, .transposed = true}), Shape,
                    "[conv_transpose2d] too large: images [1,1,196610,196610]");
  // Their positions would not fit in the index, which has 32 bits.
  const Tensor large = raw::expand(ones({1, 1, 1, 1}), {1, 1, far, far});
  EXPECT_WEFT_ERROR(raw::max_pool2d(large, {.kernel = {2, 2}, .stride = {2, 2}}), Shape,
                    "[max_pool2d] too large: images [1,1,65536,65536] padded by (0, 0)");
  EXPECT_WEFT_ERROR(raw::adaptive_max_pool2d(large, {1, 1}), Shape, "too large");
}

TEST_P(ConvTest, WindowsOfPaddingAlone) {
  const Pool2dParams p{.kernel = {2, 2}, .stride = {1, 1}, .padding = {1, 1}};
  const auto [y, index] = raw::max_pool2d(zeros({1, 1, 0, 0}), p);
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_TENSOR(y, ({1, 1, 1, 1}), {-inf});
  EXPECT_TENSOR(index, ({1, 1, 1, 1}), {-1});
}

TEST_P(ConvTest, WindowsMuchLargerThanTheImage) {
  // Most of their positions lie outside, and are not walked.
  constexpr std::int64_t kFar = 1 << 29;
  for (const bool wide : {false, true}) {
    const Shape shape = wide ? Shape{1, 2, 1, 3} : Shape{1, 2, 3, 1};
    const auto pair = [&](std::int64_t of_long, std::int64_t of_short) {
      return wide ? std::array{of_short, of_long} : std::array{of_long, of_short};
    };
    for (const MemoryFormat format : {MemoryFormat::nchw, MemoryFormat::nhwc}) {
      const Tensor x = raw::contiguous(make({0, 1, 2, 5, 4, 3}, shape), format);
      const Pool2dParams p{.kernel = pair(2 * kFar, 1),
                           .stride = pair(kFar, 1),
                           .padding = pair(kFar, 0),
                           .ceil_mode = true};
      const auto [y, index] = raw::max_pool2d(x, p);
      Shape pooled = shape;
      pooled[wide ? 3 : 2] = 2;
      EXPECT_TENSOR(y, (pooled), {2, 2, 5, 5});
      EXPECT_TENSOR(raw::max_pool2d_backward(raw::add(y, 1), index, shape, p), (shape),
                    {0, 0, 6, 12, 0, 0});
      const AvgPool2dParams mean{.kernel = p.kernel,
                                 .stride = p.stride,
                                 .padding = p.padding,
                                 .ceil_mode = true,
                                 .count_include_pad = false};
      EXPECT_TENSOR(raw::avg_pool2d(x, mean), (pooled), {1, 1, 4, 4});
      EXPECT_TENSOR(raw::avg_pool2d_backward(full(pooled, 3), shape, mean), (shape),
                    {2, 2, 2, 2, 2, 2});
    }
    // Windows that meet the image once, and others that lie in its padding.
    const Tensor x = make({0, 1, 2, 5, 4, 3}, shape), w = ones({1, 2, 1, 1});
    const Tensor y =
        raw::conv2d(x, w, {}, {.stride = pair((1 << 16), 1), .padding = pair((1 << 16), 0)});
    EXPECT_TENSOR(y, (wide ? Shape{1, 1, 1, 3} : Shape{1, 1, 3, 1}), {0, 5, 0});
  }
}

}  // namespace
}  // namespace weft
