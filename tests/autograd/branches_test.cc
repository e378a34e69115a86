// Branches of a graph that run at the same time, in streams of their own.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/autograd/ops.h"
#include "weft/core/runtime/runtime.h"
#include "weft/tests/device_param.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::some;
using testing::values_of;

class BranchesTest : public testing::DeviceParam {
 protected:
  // What is queued on `late` from now on runs after what is queued on `early`.
  void order(const Stream& early, const Stream& late) {
    const auto event = runtime(device()).new_event(device().index);
    event->record(early);
    event->block(late);
  }

  // The gradients of a and b, whose branches run in these streams; `of_sum` is the stream of the
  // sum.
  std::vector<std::vector<double>> gradients(const Stream& of_a, const Stream& of_b,
                                             const Stream& of_sum) {
    const Stream caller = current_stream(device());
    Tensor a = some({64, 64}, DType::f32, -3, 3, 1).set_requires_grad();
    Tensor b = some({64, 64}, DType::f32, -3, 3, 2).set_requires_grad();
    const Tensor weights = some({64, 64}, DType::f32, -3, 3, 3);
    const Tensor ones = some({64, 64}, DType::f32, 1, 1);
    for (const Stream& stream : {of_a, of_b, of_sum}) order(caller, stream);
    set_current_stream(of_a);
    const Tensor from_a = sigmoid(a);
    set_current_stream(of_b);
    const Tensor from_b = sigmoid(b);
    order(of_a, of_sum);
    order(of_b, of_sum);
    set_current_stream(of_sum);
    const Tensor y = (from_a + from_b) * weights;
    order(of_sum, caller);
    set_current_stream(caller);
    y.backward(ones);
    // The stream that is waited for first gets ahead of the other.
    for (const Stream& stream : {of_a, of_b}) runtime(device()).synchronize(stream);
    return {values_of(a.grad()), values_of(b.grad())};
  }
};

// Both branches get the sum's own gradient, and the last one that needs it may overwrite it.
TEST_P(BranchesTest, NoneWritesOverAGradientThatAnotherOneReads) {
  const Stream caller = current_stream(device());
  const auto expected = gradients(caller, caller, caller);
  const Stream one = runtime(device()).new_stream(device().index);
  const Stream other = runtime(device()).new_stream(device().index);
  EXPECT_EQ(gradients(one, other, one), expected);
  EXPECT_EQ(gradients(one, other, other), expected);
  EXPECT_EQ(gradients(one, other, caller), expected);
}

WEFT_FOR_EACH_DEVICE(BranchesTest);

}  // namespace
}  // namespace weft
