#include <cmath>
#include <limits>
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

TEST_P(SortingTest, MediansAsPyTorch) {
  for (const DType dtype : testing::kAllDTypes) {
    if (dtype == DType::boolean) continue;  // PyTorch has none
    const std::string prefix = std::string(to_string(dtype)) + "_";
    for (const Tensor& x : testing::layouts(raw::to(goldens.tensor(prefix + "x"), device()))) {
      for (const int dim : {0, 1, 2}) {
        const std::string name = prefix + std::to_string(dim) + "_median";
        SCOPED_TRACE(name);
        const std::vector<double> want = goldens[name];
        const auto [values, indices] = raw::median(x, dim - 3);
        EXPECT_EQ(values.dtype(), dtype);
        EXPECT_TRUE(testing::near_values(values, want, 0));
        EXPECT_TRUE(
            testing::near_values(raw::gather(x, dim, raw::unsqueeze(indices, dim)), want, 0));
        // Of equal elements PyTorch names any, but the first of several NaNs.
        const std::vector<double> at = values_of(indices), their = goldens[name + "_indices"];
        for (std::size_t i = 0; i < at.size(); ++i) {
          if (std::isnan(want[i])) {
            EXPECT_EQ(at[i], their[i]);
          }
        }
      }
    }
  }
}

TEST_P(SortingTest, MedianIsTheLowerMiddleAndKeepsTheOrderOfEqualOnes) {
  const Tensor x = make({4, 1, 3, 2, 5, 5, 5, 5}, {2, 4});
  EXPECT_TENSOR(raw::median(x, 1).values, ({2}), {2, 5});
  EXPECT_TENSOR(raw::median(x, 1).indices, ({2}), {3, 1});
  EXPECT_TENSOR(raw::median(x, 1, true).values, ({2, 1}), {2, 5});
  EXPECT_TENSOR(raw::median(x, 0, true).indices, ({1, 4}), {0, 0, 0, 0});
  EXPECT_TENSOR(raw::median(x), ({}), {4});
  EXPECT_TENSOR(raw::median(scalar(3), 0).indices, ({}), {0});
  EXPECT_TENSOR(raw::median(scalar(3)), ({}), {3});
  EXPECT_TRUE(std::isnan(raw::median(make({1, std::nan(""), 2}, {3})).item<double>()));
  EXPECT_TRUE(std::isnan(raw::median(zeros({0, 2})).item<double>()));
  EXPECT_TENSOR(raw::median(zeros({0, 2}), 1).values, ({0}), {});
  EXPECT_WEFT_ERROR(raw::median(zeros({0, 2}), 0), Shape,
                    "[median] no elements to choose from: dimension 0 of [0,2] is empty");
  EXPECT_WEFT_ERROR(raw::median(zeros({0}, DType::i32)), Shape, "[median] no elements");
}

TEST_P(SortingTest, SearchesAsPyTorch) {
  for (const DType dtype : testing::kAllDTypes) {
    if (dtype == DType::boolean) continue;
    const std::string prefix = std::string(to_string(dtype)) + "_";
    const Tensor sequence = raw::to(goldens.tensor(prefix + "sequence"), device());
    for (const Tensor& x : testing::layouts(raw::to(goldens.tensor(prefix + "x"), device()))) {
      const Tensor left = raw::searchsorted(testing::with_gaps(sequence), x);
      EXPECT_EQ(left.shape(), x.shape());
      EXPECT_EQ(values_of(left), goldens[prefix + "search_left"]);
      EXPECT_EQ(values_of(raw::searchsorted(sequence, x, true)), goldens[prefix + "search_right"]);
    }
  }
}

TEST_P(SortingTest, SearchesRowByRow) {
  const Tensor rows = make({1, 3, 5, 2, 2, 2}, {2, 3});
  EXPECT_TENSOR(raw::searchsorted(rows, make({3, 6, 2, 0}, {2, 2})), ({2, 2}), {1, 3, 0, 0});
  EXPECT_TENSOR(raw::searchsorted(rows, make({3, 6, 2, 0}, {2, 2}), true), ({2, 2}), {2, 3, 3, 0});
  EXPECT_TENSOR(raw::searchsorted(raw::select(rows, 0, 0), scalar(4)), ({}), {2});
  EXPECT_TENSOR(raw::searchsorted(zeros({0}), ones({2})), ({2}), {0, 0});
  EXPECT_TENSOR(raw::searchsorted(zeros({2, 3}), zeros({2, 0})), ({2, 0}), {});
  EXPECT_WEFT_ERROR(raw::searchsorted(rows, ones({3, 2})), Shape,
                    "[searchsorted] sequence: got [2,3], expected one dimension");
  EXPECT_WEFT_ERROR(raw::searchsorted(scalar(1), ones({2})), Shape, "[searchsorted] sequence");
  EXPECT_WEFT_ERROR(raw::searchsorted(rows, ones({2, 2}, DType::f64)), Dtype, "[searchsorted]");
}

TEST_P(SortingTest, UniqueAsPyTorch) {
  for (const DType dtype : testing::kAllDTypes) {
    const std::string prefix = std::string(to_string(dtype)) + "_unique_";
    SCOPED_TRACE(prefix);
    const Tensor host = goldens.tensor(std::string(to_string(dtype)) + "_x");
    for (const Tensor& x : testing::layouts(raw::to(host, device()))) {
      const UniqueElements got = raw::unique(x, true, true);
      EXPECT_EQ(got.values.dtype(), dtype);
      EXPECT_TRUE(testing::near_values(got.values, goldens[prefix + "values"], 0));
      const Tensor back = raw::index_select(got.values, 0, raw::flatten(got.inverse));
      EXPECT_TRUE(testing::near_values(back, values_of(x), 0));
      // Of several NaNs PyTorch names any.
      const std::vector<double> at = values_of(got.inverse), their = goldens[prefix + "inverse"];
      const std::vector<double> of_x = values_of(x);
      for (std::size_t i = 0; i < at.size(); ++i) {
        if (!std::isnan(of_x[i])) {
          EXPECT_EQ(at[i], their[i]);
        }
      }
      EXPECT_EQ(got.inverse.shape(), x.shape());
      EXPECT_EQ(values_of(got.counts), goldens[prefix + "counts"]);
    }
  }
  const UniqueElements one = raw::unique(scalar(3), true);
  EXPECT_TENSOR(one.values, ({1}), {3});
  EXPECT_TENSOR(one.inverse, ({}), {0});
  EXPECT_FALSE(one.counts.defined());
  const UniqueElements none = raw::unique(zeros({0, 2}, DType::u8), true, true);
  EXPECT_TENSOR(none.values, ({0}), {});
  EXPECT_EQ(none.values.dtype(), DType::u8);
  EXPECT_TENSOR(none.inverse, ({0, 2}), {});
  EXPECT_TENSOR(none.counts, ({0}), {});
}

TEST_P(SortingTest, UniqueSlicesAsPyTorch) {
  for (const DType dtype : testing::kAllDTypes) {
    const std::string prefix = std::string(to_string(dtype)) + "_";
    const Tensor host = goldens.tensor(prefix + "slices");
    for (const Tensor& x : testing::layouts(raw::to(host, device()))) {
      for (const int dim : {0, 1, 2}) {
        const std::string name = prefix + "unique_" + std::to_string(dim) + "_";
        SCOPED_TRACE(name);
        const UniqueElements got = raw::unique(x, true, true, dim - 3);
        EXPECT_EQ(got.values.dtype(), dtype);
        EXPECT_EQ(got.values.shape(), goldens.tensor(name + "values").shape());
        EXPECT_TRUE(testing::near_values(got.values, goldens[name + "values"], 0));
        EXPECT_EQ(values_of(got.inverse), goldens[name + "inverse"]);
        EXPECT_EQ(values_of(got.counts), goldens[name + "counts"]);
      }
    }
  }
}

// The order is that of sort(): NaN comes last, and equals nothing.
TEST_P(SortingTest, UniqueSlicesWithNaNAreAllDifferent) {
  const double nan = std::nan("");
  const Tensor x = make({nan, 0, 1, 5, nan, 0, 1, -5, 1, 5, -0.0, 1, 0, 1}, {7, 2});
  const UniqueElements got = raw::unique(x, true, true, 0);
  EXPECT_TRUE(testing::near_values(got.values, {0, 1, 1, -5, 1, 5, nan, 0, nan, 0}, 0));
  EXPECT_TENSOR(got.inverse, ({7}), {3, 2, 4, 1, 2, 0, 0});
  EXPECT_TENSOR(got.counts, ({5}), {2, 1, 2, 1, 1});
  const UniqueElements alone = raw::unique(x, false, false, 0);
  EXPECT_FALSE(alone.inverse.defined() || alone.counts.defined());
  const UniqueElements none = raw::unique(zeros({0, 2}), true, true, 0);
  EXPECT_TENSOR(none.values, ({0, 2}), {});
  EXPECT_TENSOR(none.inverse, ({0}), {});
  EXPECT_TENSOR(none.counts, ({0}), {});
  EXPECT_WEFT_ERROR(raw::unique(zeros({2, 0}), false, false, 0), Shape,
                    "[unique] the slices of dimension 0 of [2,0] are empty");
  EXPECT_WEFT_ERROR(raw::unique(zeros({0, 0}), false, false, 0), Shape, "[unique] the slices");
  EXPECT_WEFT_ERROR(raw::unique(scalar(1), false, false, 0), Shape, "[unique] x: got []");
}

TEST_P(SortingTest, Bincount) {
  for (const DType dtype : {DType::i64, DType::i32, DType::u8, DType::boolean}) {
    const Tensor x = make({1, 0, 1, 1}, {4}, dtype);
    EXPECT_TENSOR(raw::bincount(x), ({2}), {1, 3});
    EXPECT_EQ(raw::bincount(x).dtype(), DType::i64);
    EXPECT_TENSOR(raw::bincount(testing::with_gaps(x), {}, 4), ({4}), {1, 3, 0, 0});
    EXPECT_TENSOR(raw::bincount(x, make({0.5, 1, 2, 4}, {4})), ({2}), {1, 6.5});
    EXPECT_EQ(raw::bincount(x, ones({4})).dtype(), DType::f32);
    EXPECT_EQ(raw::bincount(x, ones({4}, DType::i32)).dtype(), DType::f64);
  }
  const Tensor x = make({4, 2}, {2}, DType::i64), none = zeros({0}, DType::i64);
  EXPECT_TENSOR(raw::bincount(x, {}, 2), ({5}), {0, 0, 1, 0, 1});
  EXPECT_TENSOR(raw::bincount(none), ({0}), {});
  EXPECT_TENSOR(raw::bincount(none, {}, 2), ({2}), {0, 0});
  EXPECT_WEFT_ERROR(raw::bincount(raw::sub(x, 3)), InvalidArgument,
                    "[bincount] x has the negative number -1");
  EXPECT_WEFT_ERROR(raw::bincount(ones({2})), Dtype, "[bincount] x: got f32, expected integers");
  EXPECT_WEFT_ERROR(raw::bincount(raw::unsqueeze(x, 0)), Shape, "[bincount] x: got [1,2]");
  EXPECT_WEFT_ERROR(raw::bincount(x, ones({3})), Shape,
                    "[bincount] weights: got [3], expected [2]");
  EXPECT_WEFT_ERROR(raw::bincount(x, {}, -1), InvalidArgument, "[bincount] minlength: got -1");
  const auto largest = from_vector<std::int64_t>({std::numeric_limits<std::int64_t>::max()}, {1});
  EXPECT_WEFT_ERROR(raw::bincount(raw::to(largest, device())), Shape, "[bincount]");
}

TEST_P(SortingTest, NonzeroAsPyTorch) {
  for (const DType dtype : testing::kAllDTypes) {
    const std::string prefix = std::string(to_string(dtype)) + "_";
    for (const Tensor& x : testing::layouts(raw::to(goldens.tensor(prefix + "x"), device()))) {
      const Tensor positions = raw::nonzero(x);
      EXPECT_EQ(positions.shape(-1), 3);
      EXPECT_EQ(values_of(positions), goldens[prefix + "nonzero"]);
    }
  }
  EXPECT_TENSOR(raw::nonzero(scalar(3)), ({1, 0}), {});
  EXPECT_TENSOR(raw::nonzero(scalar(0)), ({0, 0}), {});
  EXPECT_TENSOR(raw::nonzero(zeros({2, 0})), ({0, 2}), {});
  EXPECT_TENSOR(raw::nonzero(zeros({2, 3})), ({0, 2}), {});
  EXPECT_TENSOR(raw::flat_nonzero(make({0, 1, 2, 0}, {2, 2})), ({2}), {1, 2});
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
