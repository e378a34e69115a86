#include <cmath>
#include <limits>

#include "weft/tensor/elementwise.h"
#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/device_param.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::make;
using testing::near_values;
using testing::some;
using testing::with_gaps;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class LossTest : public testing::DeviceParam {
 protected:
  static Tensor classes(const std::vector<double>& values) {
    return make(values, {static_cast<std::int64_t>(values.size())}, DType::i64);
  }
};
WEFT_FOR_EACH_DEVICE(LossTest);

TEST_P(LossTest, CountsTargetsThatAreNotIgnored) {
  const Tensor target = classes({2, 0, -100, 3, 3});
  for (const Tensor& t : {target, with_gaps(target)}) {
    const auto result = raw::cross_entropy(some({5, 4}), t, {});
    EXPECT_TENSOR(result.count, ({}), {4});
    // Ignored rows have log probabilities, too.
    EXPECT_TRUE(near_values(raw::sum(raw::exp(result.log_probs), {1}), {1, 1, 1, 1, 1}, 1e-6));
  }
}

TEST_P(LossTest, CrossEntropyOfNothing) {
  const auto ignored = raw::cross_entropy(ones({2, 3}), classes({-100, -100}), {});
  EXPECT_TRUE(near_values(ignored.loss, {kNaN}, 0));
  EXPECT_TENSOR(ignored.count, ({}), {0});
  EXPECT_TRUE(near_values(raw::cross_entropy(zeros({0, 3}), classes({}), {}).loss, {kNaN}, 0));
  const CrossEntropyParams sum{.reduction = Reduction::sum}, none{.reduction = Reduction::none};
  EXPECT_TENSOR(raw::cross_entropy(zeros({0, 3}), classes({}), sum).loss, ({}), {0});
  EXPECT_TENSOR(raw::cross_entropy(zeros({0, 3}), classes({}), none).loss, ({0}), {});
  const auto empty = raw::cross_entropy(zeros({0, 3}), classes({}), sum);
  EXPECT_EQ(raw::cross_entropy_backward(scalar(1), empty.log_probs, classes({}), empty.count, sum)
                .shape(),
            (Shape{0, 3}));
  const CrossEntropyParams other{.ignore_index = 1};
  EXPECT_TENSOR(raw::cross_entropy(ones({2, 3}), classes({1, 0}), other).count, ({}), {1});
}

TEST_P(LossTest, Bf16CountsBeyond256) {
  const Tensor logits = zeros({257, 2}, {DType::bf16, device()});
  const auto result = raw::cross_entropy(logits, zeros({257}, {DType::i64, device()}), {});
  EXPECT_TENSOR(result.count, ({}), {257});
}

TEST_P(LossTest, CrossEntropyErrors) {
  const Tensor logits = ones({2, 3});
  EXPECT_WEFT_ERROR(raw::cross_entropy(ones({3}), classes({0}), {}), Shape,
                    "[cross_entropy] logits: got [3], expected [N,C]");
  EXPECT_WEFT_ERROR(raw::cross_entropy(logits, classes({0}), {}), Shape,
                    "[cross_entropy] target: got [1], expected [2] for logits [2,3]");
  EXPECT_WEFT_ERROR(raw::cross_entropy(logits, ones({2}), {}), Dtype,
                    "[cross_entropy] target: got f32, expected i64 class numbers");
  EXPECT_WEFT_ERROR(raw::cross_entropy(ones({2, 3}, DType::i64), classes({0, 0}), {}), Dtype,
                    "[cross_entropy] needs a floating dtype: logits is i64");
  EXPECT_WEFT_ERROR(raw::cross_entropy(logits, classes({0, 0}), {.label_smoothing = 1.5}),
                    InvalidArgument, "[cross_entropy] label_smoothing: got 1.5, expected 0 to 1");
  EXPECT_WEFT_ERROR(raw::cross_entropy(ones({2, 0}), classes({0, 0}), {}), Shape,
                    "have no classes");
  EXPECT_WEFT_ERROR(testing::waited(raw::cross_entropy(logits, classes({0, 3}), {}).loss),
                    InvalidArgument,
                    "[cross_entropy] target 3 at position [1] is out of range [0, 3)");
  EXPECT_WEFT_ERROR(testing::waited(raw::cross_entropy(logits, classes({-1, 0}), {}).loss),
                    InvalidArgument, "target -1");
  if (!on_cpu()) return;
  const Tensor grad = ones({}), count = ones({}, DType::f64);
  EXPECT_WEFT_ERROR(raw::cross_entropy_backward(grad, logits, classes({0, 3}), count, {}),
                    InvalidArgument,
                    "[cross_entropy] target 3 at position [1] is out of range [0, 3)");
  EXPECT_WEFT_ERROR(
      raw::cross_entropy_backward(grad, logits, classes({0, 1}), ones({0}, DType::f64), {}), Shape,
      "[cross_entropy] count: got [0], expected a scalar");
}

TEST_P(LossTest, MseKeepsTheLayoutOfX) {
  const Tensor x = raw::contiguous(some({2, 3, 4, 5}), MemoryFormat::nhwc);
  EXPECT_EQ(raw::mse_loss_backward(scalar(1), x, zeros({2, 3, 4, 5}), Reduction::mean).strides(),
            x.strides());
}

TEST_P(LossTest, MseOfNothingAndErrors) {
  EXPECT_TRUE(near_values(raw::mse_loss(zeros({0}), zeros({0}), Reduction::mean), {kNaN}, 0));
  EXPECT_TENSOR(raw::mse_loss(zeros({0}), zeros({0}), Reduction::sum), ({}), {0});
  EXPECT_EQ(raw::mse_loss_backward(scalar(1), zeros({0}), zeros({0}), Reduction::mean).numel(), 0);
  EXPECT_WEFT_ERROR(raw::mse_loss(ones({2}), ones({2, 1}), Reduction::mean), Shape,
                    "[mse_loss] target: got [2,1], x is [2]");
  EXPECT_WEFT_ERROR(raw::mse_loss(ones({2}), ones({2}, DType::f64), Reduction::mean), Dtype,
                    "[mse_loss] dtype: x is f32, target is f64");
  EXPECT_WEFT_ERROR(raw::mse_loss(ones({2}, DType::i64), ones({2}, DType::i64), Reduction::mean),
                    Dtype, "needs a floating dtype");
  EXPECT_WEFT_ERROR(raw::mse_loss_backward(ones({2}), ones({2}), ones({2}), Reduction::mean), Shape,
                    "[mse_loss] gradient: got [2], the loss is a scalar");
}

}  // namespace
}  // namespace weft
