#include <cmath>

#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/device_param.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::kFloating;
using testing::layouts;
using testing::some;
using testing::values_of;

class SoftmaxTest : public testing::DeviceParam {};
WEFT_FOR_EACH_DEVICE(SoftmaxTest);

// Composed of element-wise operations and reductions, in f64.
Tensor reference(const Tensor& x, int dim, bool log) {
  const Tensor shifted = raw::sub(x, raw::max(x, {dim}, true));
  const Tensor power = raw::exp(shifted);
  const Tensor sum = raw::sum(power, {dim}, true);
  return log ? raw::sub(shifted, raw::log(sum)) : raw::div(power, sum);
}
Tensor reference_gradient(const Tensor& g, const Tensor& y, int dim, bool log) {
  if (log) return raw::sub(g, raw::mul(raw::exp(y), raw::sum(g, {dim}, true)));
  return raw::mul(y, raw::sub(g, raw::sum(raw::mul(g, y), {dim}, true)));
}

TEST_P(SoftmaxTest, EveryDimensionInEveryLayout) {
  for (const DType dtype : kFloating) {
    for (const Shape& shape : {Shape{5}, Shape{3, 4}, Shape{2, 3, 4, 5}, Shape{1, 7, 1}}) {
      const Tensor base = some(shape, dtype, -4, 4, 1), grad = some(shape, dtype, -2, 2, 2);
      for (int dim = -1; dim < base.dim(); ++dim) {
        for (const bool log : {false, true}) {
          const auto op = log ? SoftmaxOp::log_softmax : SoftmaxOp::softmax;
          const Tensor wide = raw::to(base, DType::f64), wide_grad = raw::to(grad, DType::f64);
          const Tensor want = reference(wide, dim, log);
          for (const Tensor& x : layouts(base)) {
            const Tensor y = log ? raw::log_softmax(x, dim) : raw::softmax(x, dim);
            EXPECT_NEAR_TENSOR(y, shape, values_of(want));
            const Tensor wide_y = raw::to(y, DType::f64);
            for (const Tensor& g : layouts(grad)) {
              EXPECT_NEAR_TENSOR(raw::softmax_backward(op, g, y, dim), shape,
                                 values_of(reference_gradient(wide_grad, wide_y, dim, log)));
            }
          }
        }
      }
    }
  }
}

TEST_P(SoftmaxTest, ScalarsAndNothing) {
  EXPECT_TENSOR(raw::softmax(scalar(3), 0), ({}), {1});
  EXPECT_TENSOR(raw::log_softmax(scalar(3), -1), ({}), {0});
  EXPECT_TENSOR(raw::softmax_backward(SoftmaxOp::softmax, scalar(3), scalar(1), 0), ({}), {0});
  EXPECT_TENSOR(raw::softmax(zeros({0, 3}), 1), ({0, 3}), {});
  EXPECT_TENSOR(raw::softmax(zeros({3, 0}), 1), ({3, 0}), {});
  EXPECT_TENSOR(raw::log_softmax(zeros({0}), 0), ({0}), {});
}

TEST_P(SoftmaxTest, ChannelsLastImagesStayThatWay) {
  const Tensor x = raw::contiguous(some({2, 3, 4, 5}), MemoryFormat::nhwc);
  EXPECT_TRUE(raw::softmax(raw::permute(x, {0, 2, 3, 1}), -1).is_contiguous());
}

TEST_P(SoftmaxTest, Errors) {
  EXPECT_WEFT_ERROR(raw::softmax(ones({2, 3}), 2), Shape, "[softmax]");
  EXPECT_WEFT_ERROR(raw::log_softmax(ones({2, 3}), 1LL << 32), Shape,
                    "[log_softmax] dimension: got 4294967296");
  EXPECT_WEFT_ERROR(raw::softmax(ones({2}, DType::i64), 0), Dtype,
                    "[softmax] needs a floating dtype: x is i64");
  EXPECT_WEFT_ERROR(raw::softmax_backward(SoftmaxOp::log_softmax, ones({2}), ones({3}), 0), Shape,
                    "[log_softmax] gradient: got [2], y is [3]");
  EXPECT_WEFT_ERROR(raw::leaky_relu(ones({2}), -0.1), InvalidArgument,
                    "[leaky_relu] negative_slope: got -0.1, expected 0 or more");
  EXPECT_WEFT_ERROR(raw::softplus(ones({2}), 0), InvalidArgument,
                    "[softplus] beta: got 0, expected more than 0");
  EXPECT_WEFT_ERROR(raw::smooth_l1(ones({2}), -1), InvalidArgument,
                    "[smooth_l1] beta: got -1, expected 0 or more");
}

}  // namespace
}  // namespace weft
