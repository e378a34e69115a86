// Batch norm, layer norm and group norm: running statistics, errors. The tests of the kernels and
// every_op_test have the values.
#include <cmath>

#include "weft/tensor/elementwise.h"
#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/device_param.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::kFloating;
using testing::make;
using testing::some;
using testing::values_of;

class NormTest : public testing::DeviceParam {};
WEFT_FOR_EACH_DEVICE(NormTest);

TEST_P(NormTest, ResultsLieAsTheImagesAndStatisticsAreWide) {
  for (const DType dtype : kFloating) {
    const Tensor images = some({3, 4, 2, 5}, dtype);
    for (const Tensor& x : testing::image_layouts(images)) {
      const raw::NormResult r = raw::batch_norm(x, {}, {}, {}, {});
      EXPECT_EQ(r.y.is_channels_last(), x.is_channels_last());
      EXPECT_EQ(r.mean.dtype(), dtype == DType::bf16 ? DType::f32 : dtype);
      EXPECT_EQ(raw::layer_norm(x, {2, 5}, {}, {}, 1e-5).mean.shape(), (Shape{3, 4}));
      const raw::NormResult g = raw::group_norm(x, 2, {}, {}, 1e-5);
      EXPECT_EQ(g.mean.shape(), (Shape{3, 2}));
      EXPECT_EQ(g.mean.dtype(), r.mean.dtype());
      EXPECT_TRUE(g.y.is_contiguous());
      EXPECT_EQ(values_of(g.y), values_of(raw::group_norm(images, 2, {}, {}, 1e-5).y));
    }
  }
}

TEST_P(NormTest, WithoutActivationTheAddendsGradientIsTheGradient) {
  const Tensor x = some({2, 3, 2, 2}), g = some({2, 3, 2, 2});
  const raw::NormResult r = raw::batch_norm(x, {}, {}, {}, {});
  const auto grads = raw::batch_norm_backward(g, x, {}, r.mean, r.invstd, true, {.addend = true});
  EXPECT_EQ(grads.addend.raw_data(), g.raw_data());
}

TEST_P(NormTest, TrainingUpdatesTheRunningStatistics) {
  const Tensor x = make({1, 2, 3, 4}, {4, 1, 1, 1});
  const RunningStats state{zeros({1}), ones({1}), zeros({}, DType::i64)};
  const auto version = state.mean.storage()->version();
  raw::batch_norm(x, {}, {}, state, {});
  // 0.9 old + 0.1 new; the variance is the unbiased one, 5/3.
  EXPECT_NEAR_TENSOR(state.mean, (Shape{1}), std::vector<double>{0.25});
  EXPECT_NEAR_TENSOR(state.var, (Shape{1}), std::vector<double>{0.9 + 0.5 / 3});
  EXPECT_TENSOR(state.num_batches, {}, {1});
  EXPECT_NE(state.mean.storage()->version(), version);
  // Evaluation only reads the statistics.
  const Tensor y = raw::batch_norm(x, {}, {}, state, {.eps = 0, .training = false}).y;
  EXPECT_NEAR_TENSOR(y, (Shape{4, 1, 1, 1}),
                     values_of(raw::div(raw::sub(x, 0.25), std::sqrt(0.9 + 0.5 / 3))));
  EXPECT_TENSOR(state.num_batches, {}, {1});
}

TEST_P(NormTest, ABatchOfNoneCountsAndChangesNothingElse) {
  const RunningStats state{zeros({3}), ones({3}), zeros({}, DType::i64)};
  const Tensor x = ones({0, 3, 2, 2});
  const raw::NormResult r = raw::batch_norm(x, ones({3}), {}, state, {});
  EXPECT_EQ(r.y.shape(), x.shape());
  EXPECT_TENSOR(state.mean, {3}, {0, 0, 0});
  EXPECT_TENSOR(state.var, {3}, {1, 1, 1});
  EXPECT_TENSOR(state.num_batches, {}, {1});
  const auto grads = raw::batch_norm_backward(x, x, ones({3}), r.mean, r.invstd, true);
  EXPECT_TENSOR(grads.weight, {3}, {0, 0, 0});
  EXPECT_TENSOR(
      raw::layer_norm_backward(ones({0, 2}), ones({0, 2}), {2}, {}, ones({0}), ones({0})).bias, {2},
      {0, 0});
}

std::vector<double> zeros_of(std::int64_t n) {
  return std::vector<double>(static_cast<std::size_t>(n));
}

TEST_P(NormTest, GroupNormOfNothing) {
  for (const Shape& shape : {Shape{0, 4, 3}, Shape{2, 4, 0}, Shape{2, 0, 3}, Shape{2, 0}}) {
    const Tensor x = ones(shape), part = ones({shape[1]});
    const raw::NormResult r = raw::group_norm(x, 2, part, part, 1e-5);
    EXPECT_EQ(r.y.shape(), shape);
    EXPECT_EQ(r.mean.shape(), (Shape{shape[0], 2}));
    EXPECT_EQ(values_of(r.mean), zeros_of(2 * shape[0]));
    const auto grads = raw::group_norm_backward(x, x, 2, part, r.mean, r.invstd);
    EXPECT_EQ(grads.x.shape(), shape);
    EXPECT_EQ(values_of(grads.weight), zeros_of(shape[1]));
    EXPECT_EQ(values_of(grads.bias), zeros_of(shape[1]));
  }
}

// Layer norm of rows of numbers is group norm of images of one pixel.
TEST_P(NormTest, OneGroupOfPixelsIsLayerNorm) {
  const Tensor x = some({5, 6}), w = some({6}, DType::f32, -2, 2, 2), b = some({6}, DType::f32);
  const raw::NormResult group = raw::group_norm(x, 1, w, b, 1e-5),
                        layer = raw::layer_norm(x, {6}, w, b, 1e-5);
  EXPECT_EQ(values_of(group.y), values_of(layer.y));
  EXPECT_EQ(group.mean.shape(), (Shape{5, 1}));
}

TEST_P(NormTest, Errors) {
  const auto norm = [](const Tensor& x, const Tensor& w = {}, const RunningStats& s = {},
                       const BatchNormParams& p = {}) { raw::batch_norm(x, w, {}, s, p); };
  EXPECT_WEFT_ERROR(norm(ones({4, 3})), Shape, "[batch_norm] input: got [4,3], expected [N,C,H,W]");
  EXPECT_WEFT_ERROR(norm(ones({2, 3, 2, 2}, DType::i64)), Dtype,
                    "[batch_norm] needs a floating dtype");
  EXPECT_WEFT_ERROR(norm(ones({2, 3, 2, 2}), ones({4})), Shape,
                    "[batch_norm] weight: got [4], expected [3] (x [2,3,2,2])");
  EXPECT_WEFT_ERROR(norm(ones({2, 3, 2, 2}), ones({3}, DType::f64)), Dtype,
                    "[batch_norm] dtype: x is f32, weight is f64");
  EXPECT_WEFT_ERROR(norm(ones({2, 3, 2, 2}, DType::bf16), ones({3}, DType::f64)), Dtype,
                    "[batch_norm] dtype: x is bf16, weight is f64");
  EXPECT_WEFT_ERROR(norm(ones({2, 3, 2, 2}), ones({3}, DType::bf16)), Dtype,
                    "[batch_norm] dtype: x is f32, weight is bf16");
  EXPECT_WEFT_ERROR(norm(ones({1, 3, 1, 1})), Shape,
                    "[batch_norm] expected more than 1 value per channel when training, got x "
                    "[1,3,1,1]");
  EXPECT_WEFT_ERROR(norm(ones({2, 3, 2, 2}), {}, {ones({4}), {}, {}}), Shape,
                    "[batch_norm] running_mean: got [4], expected [3]");
  EXPECT_WEFT_ERROR(norm(ones({2, 3, 2, 2}), {}, {{}, {}, ones({})}), InvalidArgument,
                    "[batch_norm] num_batches: got f32 [], expected i64 []");
  EXPECT_WEFT_ERROR(norm(ones({2, 3, 2, 2}), {}, {}, {.training = false}), InvalidArgument,
                    "[batch_norm] evaluation needs running_mean and running_var");
  EXPECT_WEFT_ERROR(norm(ones({2, 3, 2, 2}), {}, {}, {.cumulative = true}), InvalidArgument,
                    "[batch_norm] cumulative averages need num_batches");
  const raw::NormResult r = raw::batch_norm(ones({2, 3, 2, 2}), {}, {}, {}, {});
  EXPECT_WEFT_ERROR(raw::batch_norm_backward(ones({2, 3, 2, 1}), r.y, {}, r.mean, r.invstd, true),
                    Shape, "[batch_norm] gradient: got [2,3,2,1], the output is [2,3,2,2]");
  EXPECT_WEFT_ERROR(raw::batch_norm_backward(r.y, r.y, {}, r.mean, ones({2}), true),
                    InvalidArgument, "[batch_norm] mean and invstd: got f32 [3], [2]");

  const auto then = [](const Tensor& addend, double slope) {
    raw::batch_norm(ones({2, 3, 2, 2}), {}, {}, {}, {.negative_slope = slope}, addend);
  };
  EXPECT_WEFT_ERROR(then(ones({2, 3, 2, 1}), 0), Shape,
                    "[batch_norm] addend: got [2,3,2,1], x is [2,3,2,2]");
  EXPECT_WEFT_ERROR(then(ones({2, 3, 2, 2}, DType::f64), 0), Dtype,
                    "[batch_norm] dtype: x is f32, addend is f64");
  EXPECT_WEFT_ERROR(then({}, -0.5), InvalidArgument,
                    "[batch_norm] negative_slope: got -0.5, expected 0 or more");
  EXPECT_WEFT_ERROR(raw::batch_norm_backward(r.y, r.y, {}, r.mean, r.invstd, true, {},
                                             {.negative_slope = 0, .y = ones({3})}),
                    Shape, "[batch_norm] y: got [3], x is [2,3,2,2]");

  EXPECT_WEFT_ERROR(raw::batch_norm_backward(r.y, r.y, {}, r.mean, r.invstd, true, {.addend = true},
                                             {.negative_slope = 0}),
                    InvalidArgument, "[batch_norm] the gradient of the addend needs y");

  EXPECT_WEFT_ERROR(raw::layer_norm(ones({2, 3}), {4}, {}, {}, 1e-5), Shape,
                    "[layer_norm] input: got [2,3], its last dimensions must be normalized_shape "
                    "[4]");
  EXPECT_WEFT_ERROR(raw::layer_norm(ones({2, 3}), {}, {}, {}, 1e-5), Shape, "normalized_shape []");
  EXPECT_WEFT_ERROR(raw::layer_norm(ones({3}), {2, 3}, {}, {}, 1e-5), Shape,
                    "normalized_shape [2,3]");
  EXPECT_WEFT_ERROR(raw::layer_norm(ones({2, 3}), {3}, {}, ones({2}), 1e-5), Shape,
                    "[layer_norm] bias: got [2], expected [3]");

  const Tensor x = ones({2, 4, 3});
  EXPECT_WEFT_ERROR(raw::group_norm(x, 3, {}, {}, 1e-5), Shape,
                    "[group_norm] groups 3 do not divide the channels of [2,4,3]");
  EXPECT_WEFT_ERROR(raw::group_norm(x, 0, {}, {}, 1e-5), Shape, "[group_norm] groups 0");
  EXPECT_WEFT_ERROR(raw::group_norm(x, 2, {}, ones({3}), 1e-5), Shape,
                    "[group_norm] bias: got [3], expected [4]");
  const raw::NormResult g = raw::group_norm(x, 2, {}, {}, 1e-5);
  EXPECT_WEFT_ERROR(raw::group_norm_backward(ones({2, 4}), x, 2, {}, g.mean, g.invstd), Shape,
                    "[group_norm] gradient: got [2,4], the output is [2,4,3]");
  EXPECT_WEFT_ERROR(raw::group_norm_backward(x, x, 4, {}, g.mean, g.invstd), InvalidArgument,
                    "[group_norm] mean and invstd: got f32 [2,2]");
}

}  // namespace
}  // namespace weft
