// Wrong indices from a caller: nothing may be written where they point.
#include <gtest/gtest.h>

#include "weft/core/base/error.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tests/memory/guarded_memory.h"

namespace weft {
namespace {

using testing::GuardedMemory;

class WrongIndicesTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    static GuardedMemory memory(runtime(Device()));
    register_runtime(DeviceType::cpu, &memory);
  }
};

TEST_F(WrongIndicesTest, OfMaxPooling) {
  for (const bool channels_last : {false, true}) {
    TensorOptions options(DType::i32);
    options.channels_last = channels_last;
    for (const double wrong : {16.0, 1e6, 2147483647.0, -2.0, -2147483648.0}) {
      const Tensor index = full({1, 2, 2, 2}, wrong, options);
      const Tensor grad = raw::max_pool2d_backward(ones({1, 2, 2, 2}), index, {1, 2, 4, 4},
                                                   {.kernel = {2, 2}, .stride = {2, 2}});
      EXPECT_EQ(grad.to_vector<float>(), std::vector<float>(32, 0.0f)) << wrong;
    }
  }
}

TEST_F(WrongIndicesTest, OfCrossEntropy) {
  for (const double wrong : {3.0, 1e12, -1.0, -1e12}) {
    const Tensor target = full({2}, wrong, DType::i64);
    EXPECT_THROW(
        raw::cross_entropy_backward(ones({}), zeros({2, 3}), target, ones({}, DType::f64), {}),
        Error)
        << wrong;
  }
}

}  // namespace
}  // namespace weft
