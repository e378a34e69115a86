#include <string>

#include "weft/tensor/elementwise.h"
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

const testing::Goldens goldens("tests/tensor/goldens/sorting_goldens");

class SortingTest : public testing::DeviceParam {};
WEFT_FOR_EACH_DEVICE(SortingTest);

// NaNs of both signs, zeros of both, infinities, the extremes of integers, all of them repeated.
TEST_P(SortingTest, AsPyTorchInEveryLayout) {
  for (const DType dtype : testing::kAllDTypes) {
    const std::string prefix = std::string(to_string(dtype)) + "_";
    const Tensor host = goldens.tensor(prefix + "x");
    ASSERT_EQ(host.dtype(), dtype);
    for (const Tensor& x : testing::layouts(raw::to(host, device()))) {
      for (const int dim : {0, 1, 2}) {
        for (const bool descending : {false, true}) {
          const std::string name = prefix + std::to_string(dim) + (descending ? "_down" : "_up");
          SCOPED_TRACE(name);
          const auto [values, indices] = raw::sort(x, dim - 3, descending);
          EXPECT_EQ(values.dtype(), dtype);
          EXPECT_EQ(indices.dtype(), DType::i64);
          EXPECT_TRUE(testing::near_values(values, goldens[name + "_values"], 0));
          EXPECT_EQ(values_of(indices), goldens[name + "_indices"]);
          EXPECT_EQ(values_of(raw::argsort(x, dim, descending)), goldens[name + "_indices"]);
        }
      }
    }
  }
}

TEST_P(SortingTest, ScalarsAndNothing) {
  const auto [values, indices] = raw::sort(scalar(3), -1);
  EXPECT_TENSOR(values, ({}), {3});
  EXPECT_TENSOR(indices, ({}), {0});
  EXPECT_TENSOR(raw::sort(ones({3, 1}), 1).indices, ({3, 1}), {0, 0, 0});
  EXPECT_TENSOR(raw::sort(zeros({0, 3}), 1).values, ({0, 3}), {});
  EXPECT_TENSOR(raw::sort(zeros({3, 0}), 1).indices, ({3, 0}), {});
  EXPECT_TENSOR(raw::argsort(zeros({0}), 0), ({0}), {});
}

TEST_P(SortingTest, BroadcastAndChannelsLast) {
  const Tensor column = make({2, 3, 1}, {3, 1});
  EXPECT_TENSOR(raw::argsort(raw::expand(column, {3, 2}), 0), ({3, 2}), {2, 2, 0, 0, 1, 1});
  EXPECT_TENSOR(raw::argsort(raw::expand(column, {3, 2}), 1), ({3, 2}), {0, 1, 0, 1, 0, 1});
  const Tensor x = some({2, 3, 4, 5});
  const Tensor images = raw::contiguous(x, MemoryFormat::nhwc);
  for (int dim = 0; dim < 4; ++dim) {
    EXPECT_EQ(values_of(raw::sort(images, dim).values), values_of(raw::sort(x, dim).values));
    EXPECT_EQ(values_of(raw::argsort(images, dim)), values_of(raw::argsort(x, dim)));
  }
}

TEST_P(SortingTest, LeavesItsOperandAlone) {
  const Tensor x = make({3, 1, 2}, {3});
  raw::sort(x);
  EXPECT_TENSOR(x, ({3}), {3, 1, 2});
}

TEST_P(SortingTest, Errors) {
  EXPECT_WEFT_ERROR(raw::sort(ones({2, 3}), 2), Shape, "[sort] dimension: got 2");
  EXPECT_WEFT_ERROR(raw::argsort(ones({2, 3}), -3), Shape, "[argsort] dimension: got -3");
  EXPECT_WEFT_ERROR(raw::sort(scalar(1), 1), Shape, "[sort] dimension: got 1");
}

}  // namespace
}  // namespace weft
