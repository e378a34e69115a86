// A GPU before 8.0, for which the libraries support less.
#include <gtest/gtest.h>

#include <vector>

#include "weft/tests/core/expect_error.h"
#include "weft/tests/tensor/tensor_util.h"
#include "weft/weft.h"

namespace weft {
namespace {

// cuDNN supports bf16 from 8.0 on.
TEST(Turing, DoesNotConvolveInBf16) {
  const TensorOptions there(DType::bf16, Device("cuda:0"));
  EXPECT_WEFT_ERROR(raw::conv2d(ones({1, 2, 6, 6}, there), ones({4, 2, 3, 3}, there), {}, {}),
                    Unsupported, "cuDNN has no plan for forward: big [1,2,6,6]");
}

// Nor has it TF32 there; f32 is as everywhere.
TEST(Turing, ConvolvesInF32) {
  const TensorOptions there(DType::f32, Device("cuda:0"));
  const Tensor y = raw::conv2d(ones({1, 2, 6, 6}, there), ones({4, 2, 3, 3}, there), {}, {});
  EXPECT_EQ(testing::values_of(y.to(Device())), std::vector<double>(64, 18));
}

}  // namespace
}  // namespace weft
