// Convolution, its transpose and pooling: shapes, layouts, special values, errors. The values are
// compared in the tests of the kernels, with PyTorch's in tests/nn, and in every_op_test.
#include <cmath>
#include <limits>

#include "weft/tensor/elementwise.h"
#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/device_param.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::kFloating;
using testing::make;
using testing::near_values;
using testing::some;
using testing::values_of;

class ConvTest : public testing::DeviceParam {};
WEFT_FOR_EACH_DEVICE(ConvTest);

TEST_P(ConvTest, Shapes) {
  const auto y = [](const Shape& x, const Shape& w, const Conv2dParams& p = {}) {
    return raw::conv2d(ones(x), ones(w), {}, p).shape();
  };
  EXPECT_EQ(y({2, 3, 5, 6}, {4, 3, 3, 3}), (Shape{2, 4, 3, 4}));
  EXPECT_EQ(y({2, 3, 4, 4}, {2, 3, 4, 4}), (Shape{2, 2, 1, 1}));
  EXPECT_EQ(y({2, 3, 7, 8}, {4, 3, 3, 2}, {.stride = {2, 2}}), (Shape{2, 4, 3, 4}));
  EXPECT_EQ(y({1, 2, 4, 5}, {3, 2, 3, 3}, {.padding = {1, 2}}), (Shape{1, 3, 4, 7}));
  EXPECT_EQ(y({1, 2, 7, 9}, {3, 2, 3, 2}, {.dilation = {2, 3}}), (Shape{1, 3, 3, 6}));
  EXPECT_EQ(y({2, 4, 5, 5}, {6, 2, 3, 3}, {.groups = 2}), (Shape{2, 6, 3, 3}));
  EXPECT_EQ(y({2, 3, 4, 5}, {3, 2, 3, 3}, {.transposed = true}), (Shape{2, 2, 6, 7}));
  EXPECT_EQ(y({2, 3, 3, 4}, {3, 2, 3, 3},
              {.stride = {2, 2}, .padding = {1, 1}, .output_padding = {1, 1}, .transposed = true}),
            (Shape{2, 2, 6, 8}));
  EXPECT_EQ(y({1, 4, 3, 3}, {4, 3, 2, 2}, {.dilation = {2, 2}, .groups = 2, .transposed = true}),
            (Shape{1, 6, 5, 5}));
}

TEST_P(ConvTest, ResultsLieAsImages) {
  const Tensor images = some({2, 5, 4, 4});
  for (const Tensor& x : testing::image_layouts(images)) {
    const Tensor y = raw::conv2d(x, ones({3, 5, 2, 2}), {}, {});
    EXPECT_TRUE(y.is_contiguous() || y.is_channels_last());
    EXPECT_TRUE(raw::conv2d_backward_weights(x, y, {3, 5, 2, 2}, false, {}).first.is_contiguous());
    const bool channels_last = x.is_channels_last();
    EXPECT_EQ(raw::max_pool2d(x, {.kernel = {2, 2}}).first.is_channels_last(), channels_last);
    EXPECT_EQ(raw::avg_pool2d(x, {.kernel = {2, 2}}).is_channels_last(), channels_last);
    EXPECT_EQ(raw::adaptive_avg_pool2d(x, {3, 2}).is_channels_last(), channels_last);
  }
}

// Whole numbers, so that the order of the sums does not matter.
TEST_P(ConvTest, WeightsHaveAnyLayout) {
  const Tensor x = some({2, 5, 4, 4}), w = some({3, 5, 2, 2}), y = some({2, 3, 3, 3});
  const std::vector<double> of_x = values_of(raw::conv2d(x, w, {}, {}));
  const std::vector<double> of_y = values_of(raw::conv2d_backward_data(y, w, x.shape(), {}));
  for (const Tensor& same : testing::image_layouts(w)) {
    EXPECT_EQ(values_of(raw::conv2d(x, same, {}, {})), of_x);
    EXPECT_EQ(values_of(raw::conv2d_backward_data(y, same, x.shape(), {})), of_y);
  }
  const auto gradient = [&](MemoryFormat format) {
    return raw::conv2d_backward_weights(x, y, w.shape(), false, {}, format).first;
  };
  EXPECT_TRUE(gradient(MemoryFormat::nhwc).is_channels_last());
  EXPECT_EQ(values_of(gradient(MemoryFormat::nhwc)), values_of(gradient(MemoryFormat::nchw)));
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
  EXPECT_TENSOR(raw::conv2d(zeros({1, 0, 2, 2}), zeros({2, 0, 2, 2}), make({-3, 4}, {2}), {},
                            Activation::relu),
                ({1, 2, 1, 1}), {0, 4});
  EXPECT_EQ(raw::conv2d(zeros({0, 3, 5, 5}), w, bias, {}, Activation::relu).shape(),
            (Shape{0, 4, 3, 3}));
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

TEST_P(ConvTest, MaxPoolTiesAndNaN) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Pool2dParams p{.kernel = {2, 2}, .stride = {2, 2}};
  const auto [y, index] = raw::max_pool2d(make({1, 1, 5, nan, 1, 1, 6, 2}, {1, 1, 2, 4}), p);
  EXPECT_TRUE(near_values(y, {1, nan}, 0));
  EXPECT_TENSOR(index, ({1, 1, 1, 2}), {0, 3});
  // Of several NaNs the last one gets the gradient, as in PyTorch.
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

// Equal values and NaN as in max_pool2d.
TEST_P(ConvTest, AdaptiveMaxPool) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const DType dtype : kFloating) {
    const Tensor base = make({2, nan, 1, 0, 3, 3, 3, nan, 0, 0}, {1, 2, 1, 5}, dtype);
    for (const Tensor& x : testing::image_layouts(base)) {
      const auto [y, index] = raw::adaptive_max_pool2d(x, {1, 2});  // of columns 0 to 2 and 2 to 4
      EXPECT_TRUE(near_values(y, {nan, 3, nan, nan}, 0));
      EXPECT_TENSOR(index, ({1, 2, 1, 2}), {1, 4, 2, 2});
      EXPECT_TENSOR(raw::max_pool2d_backward(make({1, 2, 3, 4}, {1, 2, 1, 2}, dtype), index,
                                             {1, 2, 1, 5}, {.adaptive = true}),
                    ({1, 2, 1, 5}), {0, 1, 0, 0, 2, 0, 0, 7, 0, 0});
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
  // Their positions would not fit in the 32-bit index.
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
  // Most of their positions are outside, and must not be visited.
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
    // Windows with one position in the image, and others that are only in its padding.
    const Tensor x = make({0, 1, 2, 5, 4, 3}, shape), w = ones({1, 2, 1, 1});
    const Tensor y =
        raw::conv2d(x, w, {}, {.stride = pair((1 << 16), 1), .padding = pair((1 << 16), 0)});
    EXPECT_TENSOR(y, (wide ? Shape{1, 1, 1, 3} : Shape{1, 1, 3, 1}), {0, 5, 0});
  }
}

}  // namespace
}  // namespace weft
