// Batch norm and layer norm: layouts, running statistics, errors. The kernels' own tests have the
// values; here they come composed of other operations.
#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/device_param.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::kFloating;
using testing::layouts;
using testing::make;
using testing::some;
using testing::values_of;

class NormTest : public testing::DeviceParam {};
WEFT_FOR_EACH_DEVICE(NormTest);

// (x - mean) / sqrt(var + eps) over dims, in f64.
std::vector<double> normalized(const Tensor& x, const Dims& dims) {
  const Tensor wide = raw::to(x, DType::f64);
  const Tensor d = raw::sub(wide, raw::mean(wide, dims, true));
  const Tensor var = raw::var(wide, dims, 0, true);
  return values_of(raw::div(d, raw::sqrt(raw::add(var, 1e-5))));
}

TEST_P(NormTest, BatchNormInEveryLayout) {
  for (const Shape& shape : {Shape{3, 4, 2, 5}, Shape{4, 3, 1, 1}, Shape{2, 1, 3, 1}}) {
    for (const DType dtype : kFloating) {
      SCOPED_TRACE(to_string(shape) + " " + to_string(dtype));
      const Tensor base = some(shape, dtype);
      const std::vector<double> want = normalized(base, {0, 2, 3});
      std::vector<Tensor> inputs = layouts(base);
      inputs.push_back(raw::contiguous(base, MemoryFormat::nhwc));
      for (const Tensor& x : inputs) {
        const raw::NormResult r = raw::batch_norm(x, {}, {}, {}, {});
        EXPECT_NEAR_TENSOR(r.y, shape, want);
        EXPECT_TRUE(r.y.is_channels_last() || !x.is_channels_last());
        EXPECT_EQ(r.mean.dtype(), dtype == DType::bf16 ? DType::f32 : dtype);
        for (const Tensor& g : inputs) {
          const auto grads = raw::batch_norm_backward(g, x, {}, r.mean, r.invstd, true);
          EXPECT_EQ(grads.x.shape(), shape);
          // What backward leaves of a gradient is orthogonal to 1 and to x; x itself leaves nothing
          // but eps' share: 1e-5 / var of it.
          EXPECT_TRUE(testing::near_values(grads.x, std::vector<double>(numel(shape), 0.0),
                                           dtype == DType::bf16 ? 0.1 : 1e-4));
        }
      }
    }
  }
}

// The addend, y and the gradient may lie in memory otherwise than x.
TEST_P(NormTest, AdditionAndActivationInEveryLayout) {
  const Shape shape{3, 4, 2, 5};
  for (const DType dtype : kFloating) {
    const Tensor base = some(shape, dtype, -1, 1, 1), more = some(shape, dtype, -1, 1, 2);
    const raw::NormResult plain = raw::batch_norm(base, {}, {}, {}, {});
    const Tensor want = raw::relu(raw::add(plain.y, more));
    const Tensor masked = raw::unary_backward(UnaryOp::relu, more, want, {});
    const auto grads = raw::batch_norm_backward(masked, base, {}, plain.mean, plain.invstd, true);
    for (const Tensor& x : layouts(base)) {
      for (const Tensor& addend : layouts(more)) {
        const auto r = raw::batch_norm(x, {}, {}, {}, {.negative_slope = 0}, addend);
        // Sums run in another order over another layout.
        EXPECT_NEAR_TENSOR(r.y, shape, values_of(want));
        const auto got =
            raw::batch_norm_backward(addend, x, {}, r.mean, r.invstd, true, {.addend = true},
                                     {.negative_slope = 0, .y = r.y});
        EXPECT_NEAR_TENSOR(got.x, shape, values_of(grads.x));
        EXPECT_NEAR_TENSOR(got.addend, shape, values_of(masked));
      }
    }
  }
}

TEST_P(NormTest, WithoutActivationTheAddendsGradientIsTheGradient) {
  const Tensor x = some({2, 3, 2, 2}), g = some({2, 3, 2, 2});
  const raw::NormResult r = raw::batch_norm(x, {}, {}, {}, {});
  const auto grads = raw::batch_norm_backward(g, x, {}, r.mean, r.invstd, true, {.addend = true});
  EXPECT_EQ(grads.addend.raw_data(), g.raw_data());
}

TEST_P(NormTest, LayerNormInEveryLayout) {
  for (const DType dtype : kFloating) {
    const Tensor base = some({3, 4, 5}, dtype);
    for (const Tensor& x : layouts(base)) {
      EXPECT_NEAR_TENSOR(raw::layer_norm(x, {5}, {}, {}, 1e-5).y, (Shape{3, 4, 5}),
                         normalized(base, {2}));
      const raw::NormResult r = raw::layer_norm(x, {4, 5}, {}, {}, 1e-5);
      EXPECT_NEAR_TENSOR(r.y, (Shape{3, 4, 5}), normalized(base, {1, 2}));
      EXPECT_EQ(r.mean.shape(), (Shape{3}));
    }
  }
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
  // Evaluation only reads.
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

  EXPECT_WEFT_ERROR(raw::layer_norm(ones({2, 3}), {4}, {}, {}, 1e-5), Shape,
                    "[layer_norm] input: got [2,3], its last dimensions must be normalized_shape "
                    "[4]");
  EXPECT_WEFT_ERROR(raw::layer_norm(ones({2, 3}), {}, {}, {}, 1e-5), Shape, "normalized_shape []");
  EXPECT_WEFT_ERROR(raw::layer_norm(ones({3}), {2, 3}, {}, {}, 1e-5), Shape,
                    "normalized_shape [2,3]");
  EXPECT_WEFT_ERROR(raw::layer_norm(ones({2, 3}), {3}, {}, ones({2}), 1e-5), Shape,
                    "[layer_norm] bias: got [2], expected [3]");
}

}  // namespace
}  // namespace weft
