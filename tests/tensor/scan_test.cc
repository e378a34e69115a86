#include <string>

#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/device_param.h"
#include "weft/tests/goldens.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::make;
using testing::some;
using testing::values_of;

const testing::Goldens goldens("tests/tensor/goldens/scan_goldens");

class ScanTest : public testing::DeviceParam {};
WEFT_FOR_EACH_DEVICE(ScanTest);

// Rows this short are computed in PyTorch's order, with its roundings. Integers exceed their dtype
// and 64 bits; zeros have both signs.
TEST_P(ScanTest, AsPyTorchInEveryLayout) {
  for (const DType dtype : testing::kAllDTypes) {
    const std::string prefix = std::string(to_string(dtype)) + "_";
    const Tensor host = goldens.tensor(prefix + "x");
    ASSERT_EQ(host.dtype(), dtype);
    for (const Tensor& x : testing::layouts(raw::to(host, device()))) {
      for (const int dim : {0, 1, 2}) {
        SCOPED_TRACE(prefix + std::to_string(dim));
        const Tensor sums = raw::cumsum(x, dim), products = raw::cumprod(x, dim - 3);
        EXPECT_EQ(sums.dtype(), is_floating(dtype) ? dtype : DType::i64);
        EXPECT_EQ(products.dtype(), sums.dtype());
        EXPECT_EQ(values_of(sums), goldens[prefix + "cumsum_" + std::to_string(dim)]);
        EXPECT_EQ(values_of(products), goldens[prefix + "cumprod_" + std::to_string(dim)]);
      }
    }
  }
}

TEST_P(ScanTest, ReverseIsFromTheEnd) {
  const Tensor x = some({2, 600, 3}, DType::f64);
  for (const int dim : {0, 1, 2}) {
    const Tensor flipped = raw::flip(raw::cumsum(raw::flip(x, {dim}), dim), {dim});
    EXPECT_EQ(values_of(raw::cumsum(x, dim, true)), values_of(flipped));
  }
}

TEST_P(ScanTest, ScalarsAndNothing) {
  EXPECT_TENSOR(raw::cumsum(scalar(3), -1), ({}), {3});
  EXPECT_TENSOR(raw::cumprod(scalar(true, DType::boolean), 0), ({}), {1});
  EXPECT_TENSOR(raw::cumsum(zeros({0, 3}), 1), ({0, 3}), {});
  EXPECT_TENSOR(raw::cumprod(zeros({3, 0}), 1), ({3, 0}), {});
  EXPECT_EQ(raw::cumsum(zeros({0}, DType::u8), 0).dtype(), DType::i64);
}

TEST_P(ScanTest, BroadcastOperands) {
  const Tensor column = raw::expand(make({2, 3, 1}, {3, 1}), {3, 2});
  EXPECT_TENSOR(raw::cumsum(column, 0), ({3, 2}), {2, 2, 5, 5, 6, 6});
  EXPECT_TENSOR(raw::cumprod(column, 1), ({3, 2}), {2, 4, 3, 9, 1, 1});
}

TEST_P(ScanTest, Errors) {
  EXPECT_WEFT_ERROR(raw::cumsum(ones({2, 3}), 2), Shape, "[cumsum] dimension: got 2");
  EXPECT_WEFT_ERROR(raw::cumprod(ones({2, 3}), -3), Shape, "[cumprod] dimension: got -3");
}

}  // namespace
}  // namespace weft
