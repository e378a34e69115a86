#include <limits>

#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/device_param.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::kAllDTypes;
using testing::kFloating;
using testing::layouts;
using testing::make;
using testing::values_of;
using testing::waited;
using testing::with_gaps;

class IndexingTest : public testing::DeviceParam {
 protected:
  static Tensor index(const std::vector<double>& values, const Shape& shape) {
    return make(values, shape, DType::i64);
  }
};
WEFT_FOR_EACH_DEVICE(IndexingTest);

TEST_P(IndexingTest, IndexSelect) {
  for (DType dtype : kAllDTypes) {
    const Tensor base = make({0, 1, 1, 1, 0, 0}, {2, 3}, dtype);
    for (const Tensor& x : layouts(base)) {
      for (const Tensor& at : {index({2, 0, 2, 1}, {4}), with_gaps(index({2, 0, 2, 1}, {4}))}) {
        EXPECT_TENSOR(raw::index_select(x, 1, at), ({2, 4}), {1, 0, 1, 1, 0, 1, 0, 0});
      }
      EXPECT_TENSOR(raw::index_select(x, 0, index({1}, {1})), ({1, 3}), {1, 0, 0});
      EXPECT_TENSOR(raw::index_select(x, -1, index({1}, {})), ({2, 1}), {1, 0});
    }
    EXPECT_EQ(raw::index_select(base, 0, index({0}, {1})).dtype(), dtype);
  }
  EXPECT_EQ(raw::index_select(ones({2, 3}), 0, index({}, {0})).shape(), (Shape{0, 3}));
  EXPECT_EQ(raw::index_select(ones({2, 0}), 0, index({1}, {1})).shape(), (Shape{1, 0}));
}

// For dimensions 0 and -1, a scalar counts as a tensor with one dimension of length 1.
TEST_P(IndexingTest, Scalars) {
  const Tensor x = make({5}, {}), zero = index({0}, {}), list = index({0}, {1});
  for (const int dim : {0, -1}) {
    EXPECT_TENSOR(raw::index_select(x, dim, zero), ({}), {5});
    EXPECT_TENSOR(raw::index_select(x, dim, list), ({}), {5});
    EXPECT_TENSOR(raw::gather(x, dim, zero), ({}), {5});
    EXPECT_TENSOR(raw::gather(x, dim, index({0, 0}, {2})), ({2}), {5, 5});
    EXPECT_TENSOR(raw::gather(make({5, 6}, {2}), dim, index({1}, {})), ({}), {6});
    const Tensor y = make({1}, {});
    EXPECT_TENSOR(raw::index_add_(y, dim, list, make({2}, {})), ({}), {3});
    EXPECT_TENSOR(raw::scatter_add_(y, dim, zero, make({3}, {})), ({}), {6});
    EXPECT_TENSOR(raw::scatter_add_(y, dim, index({0, 0}, {2}), make({4, 5}, {2})), ({}), {15});
  }
  EXPECT_WEFT_ERROR(raw::index_select(x, 0, index({0, 0}, {2})), Shape,
                    "[index_select] index: got [2], expected one entry for a tensor without "
                    "dimensions");
  EXPECT_WEFT_ERROR(waited(raw::index_select(x, 0, index({1}, {1}))), InvalidArgument,
                    "[index_select]");
  EXPECT_WEFT_ERROR(raw::index_select(x, 1, list), Shape, "[index_select] dimension: got 1");
  EXPECT_WEFT_ERROR(raw::gather(x, 0, index({0}, {1, 1})), Shape, "[gather] index: got [1,1]");
  EXPECT_WEFT_ERROR(raw::index_add_(make({1}, {}), 0, index({0, 0}, {2}), make({1, 2}, {2})), Shape,
                    "[index_add_] x: got [2]");
}

TEST_P(IndexingTest, IndexSelectErrors) {
  const Tensor x = ones({2, 3});
  EXPECT_WEFT_ERROR(waited(raw::index_select(x, 1, index({0, 3}, {2}))), InvalidArgument,
                    "[index_select]");
  EXPECT_WEFT_ERROR(waited(raw::index_select(x, 1, index({0, 3}, {2}))), InvalidArgument, "3");
  EXPECT_WEFT_ERROR(waited(raw::index_select(x, 1, index({-1}, {1}))), InvalidArgument, "-1");
  EXPECT_WEFT_ERROR(raw::index_select(x, 2, index({0}, {1})), Shape,
                    "[index_select] dimension: got 2");
  EXPECT_WEFT_ERROR(raw::index_select(x, 1LL << 32, index({0}, {1})), Shape,
                    "[index_select] dimension: got 4294967296");
  EXPECT_WEFT_ERROR(
      raw::index_select(x, 0, ones({1})), Dtype,
      "[index_select] index: got f32, expected i64 or i32; convert it with to(dtype)");
  EXPECT_WEFT_ERROR(raw::index_select(x, 0, index({0, 0}, {1, 2})), Shape,
                    "[index_select] index: got [1,2], expected one dimension");
}

TEST_P(IndexingTest, IndexAdd) {
  for (DType dtype : kFloating) {
    for (const Tensor& y : layouts(make({1, 1, 1, 1, 1, 1}, {3, 2}, dtype))) {
      raw::index_add_(y, 0, index({2, 0, 2}, {3}), make({1, 2, 3, 4, 5, 6}, {3, 2}, dtype));
      EXPECT_TENSOR(y, ({3, 2}), {4, 5, 1, 1, 7, 9});
    }
  }
  const Tensor y = make({1, 2}, {2});
  EXPECT_WEFT_ERROR(waited(raw::index_add_(y, 0, index({2}, {1}), ones({1}))), InvalidArgument,
                    "[index_add_]");
  EXPECT_WEFT_ERROR(raw::index_add_(y, 0, index({0}, {1}), ones({2})), Shape,
                    "[index_add_] x: got [2], expected [1] for 1 indices into dimension 0 of [2]");
  EXPECT_WEFT_ERROR(raw::index_add_(y, 0, index({0}, {1}), ones({1}, DType::f64)), Dtype,
                    "[index_add_]");
  EXPECT_TENSOR(y, ({2}), {1, 2});
  raw::index_add_(y, 0, index({1, 0}, {2}), y);
  EXPECT_TENSOR(y, ({2}), {3, 3});
  raw::index_add_(y, 0, index({}, {0}), zeros({0}));
  EXPECT_TENSOR(y, ({2}), {3, 3});
}

TEST_P(IndexingTest, Embedding) {
  for (const DType dtype : kFloating) {
    for (const Tensor& weight : layouts(make({1, 2, 3, 4, 5, 6}, {3, 2}, dtype))) {
      for (const Tensor& at : layouts(index({2, 0, 1, 2}, {2, 2}))) {
        EXPECT_TENSOR(raw::embedding(at, weight), ({2, 2, 2}), {5, 6, 1, 2, 3, 4, 5, 6});
        for (const Tensor& grad : layouts(make({1, 2, 3, 4, 5, 6, 7, 8}, {2, 2, 2}, dtype))) {
          EXPECT_TENSOR(raw::embedding_backward(grad, at, 3, -1), ({3, 2}), {3, 4, 5, 6, 8, 10});
          EXPECT_TENSOR(raw::embedding_backward(grad, at, 3, 2), ({3, 2}), {3, 4, 5, 6, 0, 0});
        }
      }
      EXPECT_TENSOR(raw::embedding(index({1}, {}), weight), ({2}), {3, 4});
      EXPECT_EQ(raw::embedding(index({}, {0, 3}), weight).shape(), (Shape{0, 3, 2}));
      EXPECT_EQ(raw::embedding(index({0}, {1}), weight).dtype(), dtype);
    }
  }
  EXPECT_EQ(raw::embedding(index({}, {0}), zeros({0, 2})).shape(), (Shape{0, 2}));
  EXPECT_EQ(raw::embedding(index({1}, {1}), zeros({2, 0})).shape(), (Shape{1, 0}));
  EXPECT_WEFT_ERROR(raw::embedding(index({0}, {1}), zeros({0, 2})), InvalidArgument,
                    "[embedding] weight has no rows to take");
  EXPECT_WEFT_ERROR(raw::embedding(ones({1}), ones({3, 2})), Dtype, "[embedding] index: got f32");
  EXPECT_WEFT_ERROR(raw::embedding(index({0}, {1}), ones({3, 2}, DType::i64)), Dtype,
                    "[embedding] needs a floating dtype: weight is i64");
  EXPECT_WEFT_ERROR(raw::embedding(index({0}, {1}), ones({3})), Shape,
                    "[embedding] weight: got [3], expected [n,dim]");
  EXPECT_WEFT_ERROR(raw::embedding_backward(ones({3, 2}), index({0}, {1}), 3, -1), Shape,
                    "[embedding] gradient: got [3,2]");
}

TEST_P(IndexingTest, EmbeddingOfWhatIsNoRow) {
  const Tensor weight = make({1, 2, 3, 4}, {2, 2}), at = index({1, 2, -1, 0}, {2, 2});
  Tensor y;
  EXPECT_WEFT_ERROR(waited(y = raw::embedding(at, weight)), InvalidArgument,
                    "[embedding] index 2 at position [0,1] is out of range [0, 2)");
  if (on_cpu()) return;
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(testing::near_values(y, {3, 4, nan, nan, nan, nan, 1, 2}, 0));
  const Tensor grad = make({1, 2, 3, 4, 5, 6, 7, 8}, {2, 2, 2});
  EXPECT_TENSOR(raw::embedding_backward(grad, at, 2, -1), ({2, 2}), {7, 8, 1, 2});
}

TEST_P(IndexingTest, Gather) {
  for (DType dtype : kAllDTypes) {
    for (const Tensor& x : layouts(make({0, 1, 1, 1, 0, 0}, {2, 3}, dtype))) {
      for (const Tensor& at : layouts(index({2, 0, 1, 0}, {2, 2}))) {
        EXPECT_TENSOR(raw::gather(x, 1, at), ({2, 2}), {1, 0, 0, 1});
      }
      EXPECT_TENSOR(raw::gather(x, 0, index({1, 0, 1}, {1, 3})), ({1, 3}), {1, 1, 0});
      EXPECT_TENSOR(raw::gather(x, -1, index({1}, {1, 1})), ({1, 1}), {1});
    }
  }
  EXPECT_EQ(raw::gather(ones({2, 3}), 1, index({}, {2, 0})).shape(), (Shape{2, 0}));
  // As in PyTorch: an empty index may have any dtype and shape.
  const Tensor none = zeros({2, 0}, DType::u8);
  EXPECT_EQ(raw::gather(ones({2, 3}), 1, none).shape(), (Shape{2, 0}));
  EXPECT_EQ(raw::gather(ones({5}), 0, none).shape(), (Shape{2, 0}));
  EXPECT_EQ(raw::scatter_add(ones({2, 3}), 1, none, zeros({2, 0})).shape(), (Shape{2, 3}));
  EXPECT_WEFT_ERROR(raw::gather(ones({2, 3}), 1, zeros({2, 1}, DType::u8)), Dtype,
                    "[gather] index: got u8");
  const Tensor x = ones({2, 3});
  EXPECT_WEFT_ERROR(waited(raw::gather(x, 1, index({3}, {1, 1}))), InvalidArgument, "[gather]");
  EXPECT_WEFT_ERROR(raw::gather(x, 1, index({0, 0, 0}, {3, 1})), Shape,
                    "[gather] index: got [3,1], which must not exceed [2,3] except in dimension 1");
  EXPECT_WEFT_ERROR(raw::gather(x, 1, index({0}, {1})), Shape, "[gather] index: got [1]");
  EXPECT_WEFT_ERROR(raw::gather(x, 1, ones({1, 1})), Dtype, "[gather] index: got f32");
}

TEST_P(IndexingTest, ScatterAdd) {
  for (DType dtype : kFloating) {
    for (const Tensor& y : layouts(zeros({2, 3}, dtype))) {
      raw::scatter_add_(y, 1, index({2, 0, 1, 1}, {2, 2}), make({1, 2, 3, 4}, {2, 2}, dtype));
      EXPECT_TENSOR(y, ({2, 3}), {2, 0, 1, 0, 7, 0});
    }
  }
  const Tensor y = zeros({2, 3});
  EXPECT_WEFT_ERROR(waited(raw::scatter_add_(y, 1, index({3}, {1, 1}), ones({1, 1}))),
                    InvalidArgument, "[scatter_add_]");
  EXPECT_WEFT_ERROR(raw::scatter_add_(y, 1, index({0}, {1, 1}), ones({1})), Shape,
                    "[scatter_add_] x: got [1], index has [1,1]");
  EXPECT_TENSOR(raw::sum(y), ({}), {0});
}

TEST_P(IndexingTest, Scatter) {
  for (DType dtype : kAllDTypes) {
    for (const Tensor& y : layouts(make({0, 1, 0, 1, 1, 0}, {2, 3}, dtype))) {
      // Of two equal indices the last one counts.
      raw::scatter_(y, 1, index({2, 0, 1, 1}, {2, 2}), make({1, 1, 1, 0}, {2, 2}, dtype));
      EXPECT_TENSOR(y, ({2, 3}), {1, 1, 1, 1, 0, 0});
      raw::scatter_(y, 0, index({1, 0, 1}, {1, 3}), 0);
      EXPECT_TENSOR(y, ({2, 3}), {1, 0, 1, 0, 0, 0});
    }
  }
  const Tensor y = make({1, 2}, {2});
  EXPECT_TENSOR(raw::scatter_(y, 0, index({1}, {}), make({5}, {})), ({2}), {1, 5});
  EXPECT_TENSOR(raw::scatter_(make({1}, {}), 0, index({0, 0}, {2}), make({5, 6}, {2})), ({}), {6});
  EXPECT_TENSOR(raw::scatter_(y, 0, index({}, {0}), 3), ({2}), {1, 5});
  // From its own memory.
  EXPECT_TENSOR(raw::scatter_(y, 0, index({1, 0}, {2}), y), ({2}), {5, 1});
  EXPECT_WEFT_ERROR(waited(raw::scatter_(y, 0, index({2}, {1}), ones({1}))), InvalidArgument,
                    "[scatter_] index 2 at position [0] is out of range [0, 2)");
  EXPECT_WEFT_ERROR(raw::scatter_(y, 0, index({0}, {1}), ones({2})), Shape,
                    "[scatter_] x: got [2], index has [1]");
  EXPECT_WEFT_ERROR(raw::scatter_(y, 0, index({0}, {1}), ones({1}, DType::f64)), Dtype,
                    "[scatter_]");
  EXPECT_WEFT_ERROR(raw::scatter_(zeros({2}, DType::u8), 0, index({0}, {1}), 300), InvalidArgument,
                    "[scatter_] a tensor of u8 cannot hold 300");
  EXPECT_TENSOR(y, ({2}), {5, 1});
}

TEST_P(IndexingTest, OneHot) {
  EXPECT_TENSOR(raw::one_hot(index({1, 0}, {2}), 3), ({2, 3}), {0, 1, 0, 1, 0, 0});
  EXPECT_TENSOR(raw::one_hot(index({1, 2}, {2})), ({2, 3}), {0, 1, 0, 0, 0, 1});
  EXPECT_TENSOR(raw::one_hot(index({1}, {}), 2), ({2}), {0, 1});
  EXPECT_TENSOR(raw::one_hot(with_gaps(index({1, 0}, {1, 2})), 2), ({1, 2, 2}), {0, 1, 1, 0});
  EXPECT_EQ(raw::one_hot(index({0}, {1})).dtype(), DType::i64);
  EXPECT_EQ(raw::one_hot(index({}, {0}), 3).shape(), (Shape{0, 3}));
  EXPECT_WEFT_ERROR(waited(raw::one_hot(index({3}, {1}), 3)), InvalidArgument, "[one_hot]");
  EXPECT_WEFT_ERROR(waited(raw::one_hot(index({-1}, {1}))), InvalidArgument, "[one_hot]");
  EXPECT_WEFT_ERROR(raw::one_hot(index({}, {0})), InvalidArgument,
                    "[one_hot] cannot count the classes of an empty index [0]");
  EXPECT_WEFT_ERROR(raw::one_hot(index({0}, {1}), -2), InvalidArgument,
                    "[one_hot] classes: got -2");
  EXPECT_WEFT_ERROR(raw::one_hot(ones({1}), 2), Dtype, "[one_hot] index: got f32");
  const auto largest = from_vector<std::int64_t>({std::numeric_limits<std::int64_t>::max()}, {1});
  EXPECT_WEFT_ERROR(raw::one_hot(largest), Shape, "[one_hot] 9223372036854775807 + 1");
}

}  // namespace
}  // namespace weft
