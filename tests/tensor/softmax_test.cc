#include <cmath>

#include "weft/tensor/elementwise.h"
#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/device_param.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::some;

class SoftmaxTest : public testing::DeviceParam {};
WEFT_FOR_EACH_DEVICE(SoftmaxTest);

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
