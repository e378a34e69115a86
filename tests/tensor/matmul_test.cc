#include <algorithm>
#include <random>
#include <vector>

#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/device_param.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::for_each_index;
using testing::kFloating;
using testing::layouts;
using testing::make;
using testing::near_values;
using testing::position;
using testing::some;
using testing::values_of;

class MatmulTest : public testing::DeviceParam {};
WEFT_FOR_EACH_DEVICE(MatmulTest);

std::vector<double> product(const Tensor& a, const Tensor& b, const Tensor& bias,
                            const Shape& shape) {
  const std::vector<double> as = values_of(a), bs = values_of(b);
  const std::vector<double> row = bias.defined() ? values_of(bias) : std::vector<double>();
  std::vector<double> out;
  const std::int64_t k = a.shape(-1);
  for_each_index(shape, [&](const Dims& at) {
    double sum = row.empty() ? 0 : row[at.back()];
    Dims ia = at, ib = at;
    for (std::int64_t i = 0; i < k; ++i) {
      ia[ia.size() - 1] = i;
      ib[ib.size() - 2] = i;
      sum += as[position(a.shape(), ia)] * bs[position(b.shape(), ib)];
    }
    out.push_back(sum);
  });
  return out;
}

double bound(DType dtype, std::int64_t k) { return testing::tolerance(dtype) * (1 + double(k)); }

struct Case {
  Shape a, b, y;
};
const Case kCases[] = {
    {{2, 3}, {3, 4}, {2, 4}},
    {{1, 1}, {1, 1}, {1, 1}},
    {{1, 7}, {7, 1}, {1, 1}},
    {{5, 1}, {1, 6}, {5, 6}},
    {{33, 65}, {65, 17}, {33, 17}},
    {{4, 2, 3}, {4, 3, 5}, {4, 2, 5}},
    {{4, 2, 3}, {3, 5}, {4, 2, 5}},
    {{2, 3}, {4, 3, 5}, {4, 2, 5}},
    {{2, 1, 2, 3}, {5, 3, 4}, {2, 5, 2, 4}},
    {{1, 3, 2, 3}, {2, 1, 3, 4}, {2, 3, 2, 4}},
    {{2, 3, 4, 2, 3}, {3, 1, 3, 2}, {2, 3, 4, 2, 2}},
    {{2, 1, 3, 1, 2, 2}, {1, 4, 1, 5, 2, 2}, {2, 4, 3, 5, 2, 2}},
    {{0, 3}, {3, 4}, {0, 4}},
    {{2, 0}, {0, 4}, {2, 4}},
    {{0, 2, 3}, {3, 4}, {0, 2, 4}},
    {{3, 2, 0}, {0, 4}, {3, 2, 4}},
};

TEST_P(MatmulTest, ShapesBatchesAndLayouts) {
  for (DType dtype : kFloating) {
    for (const Case& c : kCases) {
      for (const Tensor& a : layouts(some(c.a, dtype, -1, 1, 1))) {
        for (const Tensor& b : layouts(some(c.b, dtype, -1, 1, 2))) {
          SCOPED_TRACE(std::string(to_string(dtype)) + " " + to_string(c.a) + " x " +
                       to_string(c.b));
          const std::int64_t k = c.a.back();
          const Tensor y = raw::matmul(a, b);
          EXPECT_EQ(y.shape(), c.y);
          EXPECT_TRUE(y.is_contiguous());
          EXPECT_TRUE(near_values(y, product(a, b, {}, c.y), bound(dtype, k)));
          const Tensor bias = some({c.b.back()}, dtype, -1, 1, 3);
          EXPECT_TRUE(
              near_values(raw::matmul(a, b, bias), product(a, b, bias, c.y), bound(dtype, k)));
        }
      }
    }
  }
}

TEST_P(MatmulTest, TransposedSlicedAndExpandedOperands) {
  const Tensor a = some({6, 5}, DType::f64, -1, 1, 1), b = some({6, 7}, DType::f64, -1, 1, 2);
  const Tensor at = raw::transpose(a, 0, 1);
  EXPECT_TRUE(near_values(raw::matmul(at, b), product(at, b, {}, {5, 7}), 1e-12));
  const Tensor rows = raw::slice(b, 0, 1, 6);     // row-major, not from the start
  const Tensor columns = raw::slice(b, 1, 2, 5);  // rows longer than the used part
  const Tensor bt = raw::transpose(columns, 0, 1);
  EXPECT_TRUE(near_values(raw::matmul(bt, a), product(bt, a, {}, {3, 5}), 1e-12));
  const Tensor square = raw::slice(rows, 1, 0, 5);
  EXPECT_TRUE(near_values(raw::matmul(square, square), product(square, square, {}, {5, 5}), 1e-12));
  const Tensor flat = raw::expand(some({1, 5}, DType::f64), {5, 5});  // all rows share memory
  EXPECT_TRUE(near_values(raw::matmul(flat, square), product(flat, square, {}, {5, 5}), 1e-12));
  const Tensor batch = raw::expand(square, {3, 5, 5});
  EXPECT_TRUE(near_values(raw::matmul(batch, batch), product(batch, batch, {}, {3, 5, 5}), 1e-12));
  const Tensor heads = raw::transpose(some({2, 4, 3, 5}, DType::f64), 1, 2);
  const Tensor keys = raw::transpose(heads, 2, 3);
  EXPECT_TRUE(near_values(raw::matmul(heads, keys), product(heads, keys, {}, {2, 3, 4, 4}), 1e-12));
  const Tensor row = raw::slice(raw::transpose(a, 0, 1), 0, 0, 1), column = raw::slice(a, 1, 0, 1);
  EXPECT_TRUE(near_values(raw::matmul(row, column), product(row, column, {}, {1, 1}), 1e-12));
  EXPECT_TRUE(near_values(raw::matmul(column, row), product(column, row, {}, {6, 6}), 1e-12));
}

class Chance {
 public:
  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }

  /// Small whole numbers, whose sums of products are exact in every order and dtype. The dimensions
  /// are in any order in memory, may have gaps, and some are expanded.
  Tensor operand(const Shape& shape, DType dtype) {
    Shape stored = shape;
    for (std::int64_t& n : stored) n = n > 1 && below(6) == 0 ? 1 : n;
    Dims order, back = stored;
    for (int i = 0; i < stored.size(); ++i) order.push_back(i);
    if (below(2)) std::shuffle(order.begin(), order.end(), random_);
    for (int i = 0; i < order.size(); ++i) back[order[i]] = i;
    std::vector<double> values(static_cast<std::size_t>(numel(stored)));
    for (double& v : values) v = below(7) - 3;
    const Tensor dense = raw::contiguous(raw::permute(make(values, stored, dtype), order));
    const Tensor x = raw::permute(dense, back);
    return raw::expand(below(3) == 0 ? testing::with_gaps(x) : x, shape);
  }

 private:
  std::mt19937 random_{1};
};

// Batches of up to four dimensions; each is of both operands, or one is broadcast over it.
TEST_P(MatmulTest, AnyBatchesThatBroadcast) {
  Chance chance;
  for (int i = 0; i < 400; ++i) {
    const DType dtype = kFloating[i % 3];
    Shape a, b, y;
    for (int d = chance.below(5); d > 0; --d) {
      const int size = chance.below(15) == 0 ? 0 : 1 + chance.below(3), of = chance.below(3);
      if (of != 1 || !a.empty()) a.push_back(of == 1 ? 1 : size);
      if (of != 2 || !b.empty()) b.push_back(of == 2 ? 1 : size);
      y.push_back(size);
    }
    const int m = 1 + chance.below(4), k = chance.below(5), n = 1 + chance.below(4);
    for (const int size : {m, k}) a.push_back(size);
    for (const int size : {k, n}) b.push_back(size);
    for (const int size : {m, n}) y.push_back(size);
    const Tensor left = chance.operand(a, dtype), right = chance.operand(b, dtype);
    const Tensor bias = i % 4 == 0 ? chance.operand({n}, dtype) : Tensor();
    SCOPED_TRACE(::testing::Message() << to_string(dtype) << " " << to_string(a) << " strides "
                                      << to_string(left.strides()) << " x " << to_string(b)
                                      << " strides " << to_string(right.strides()));
    const Tensor got = raw::matmul(left, right, bias);
    EXPECT_EQ(got.shape(), y);
    EXPECT_TRUE(got.is_contiguous());
    EXPECT_TRUE(near_values(got, product(left, right, bias, y), 0));
    if (dtype == DType::bf16) {
      EXPECT_TRUE(
          near_values(raw::matmul(left, right, DType::f32), product(left, right, {}, y), 0));
    }
  }
}

TEST_P(MatmulTest, OfIntegersModuloTheirBits) {
  for (const DType dtype : {DType::i64, DType::i32, DType::u8}) {
    const Tensor a = make({1, 2, 3, 4, 5, 6}, {2, 3}, dtype),
                 b = make({1, 0, 2, 1, 0, 3}, {3, 2}, dtype);
    EXPECT_TENSOR(raw::matmul(a, b), ({2, 2}), {5, 11, 14, 23});
    EXPECT_EQ(raw::matmul(a, b).dtype(), dtype);
    EXPECT_TENSOR(raw::matmul(raw::reshape(a, {2, 1, 3}), b), ({2, 1, 2}), {5, 11, 14, 23});
    EXPECT_TENSOR(raw::matmul(make({1, 2}, {2}, dtype), make({3, 4}, {2}, dtype)), ({}), {11});
    EXPECT_TENSOR(raw::matmul(zeros({2, 0}, dtype), zeros({0, 1}, dtype)), ({2, 1}), {0, 0});
  }
  EXPECT_TENSOR(raw::matmul(make({200, 100}, {1, 2}, DType::u8), make({2, 1}, {2, 1}, DType::u8)),
                ({1, 1}), {500 % 256});
  if (!on_cpu()) return;  // an emulated GPU takes minutes for what follows
  // More than one block of products.
  const Tensor wide = ones({1024, 700}, DType::i64);
  EXPECT_EQ(raw::sum(raw::matmul(wide, raw::transpose(wide, 0, 1))).item<std::int64_t>(),
            1024 * 1024 * 700);
}

TEST_P(MatmulTest, Errors) {
  EXPECT_WEFT_ERROR(raw::matmul(ones({2, 3}), ones({4, 2})), Shape,
                    "[matmul] inner dimensions: a has 3, b has 4 (a [2,3], b [4,2])");
  EXPECT_WEFT_ERROR(raw::matmul(ones({}), ones({3, 2})), Shape,
                    "[matmul] needs vectors or matrices, got a []");
  EXPECT_WEFT_ERROR(raw::matmul(ones({2, 2, 3}), ones({3, 3, 2})), Shape,
                    "[matmul] shapes [2] and [3] do not broadcast");
  EXPECT_WEFT_ERROR(raw::matmul(ones({2, 2}), ones({2, 2}, DType::f64)), Dtype,
                    "[matmul] dtype: a is f32, b is f64; convert one with to(dtype)");
  EXPECT_WEFT_ERROR(raw::matmul(ones({2, 2}, DType::boolean), ones({2, 2}, DType::boolean)), Dtype,
                    "[matmul] a: got bool, expected numbers");
  EXPECT_WEFT_ERROR(raw::matmul(ones({2, 2}), ones({2, 2}), ones({3})), Shape,
                    "[matmul] bias: got [3], expected [2]");
}

TEST_P(MatmulTest, Linear) {
  for (DType dtype : kFloating) {
    const Tensor w = some({4, 3}, dtype, -1, 1, 2), bias = some({4}, dtype, -1, 1, 3);
    const Tensor wt = raw::transpose(w, 0, 1);
    for (const Shape& shape : {Shape{3}, Shape{2, 3}, Shape{0, 3}, Shape{1, 3}, Shape{5, 2, 3}}) {
      for (const Tensor& x : layouts(some(shape, dtype, -1, 1, 1))) {
        Shape rows = shape, out = shape;
        if (rows.size() == 1) rows.insert(0, 1);
        Shape y = rows;
        y[y.size() - 1] = out[out.size() - 1] = 4;
        const Tensor matrix = raw::reshape(x, rows);
        EXPECT_EQ(raw::linear(x, w, bias).shape(), out);
        EXPECT_TRUE(
            near_values(raw::linear(x, w, bias), product(matrix, wt, bias, y), bound(dtype, 3)));
        for (const Tensor& weight : layouts(w)) {
          EXPECT_TRUE(
              near_values(raw::linear(x, weight), product(matrix, wt, {}, y), bound(dtype, 3)));
        }
      }
    }
  }
  EXPECT_TENSOR(raw::linear(zeros({1, 0}), zeros({3, 0}), make({1, -2, 3}, {3}), Activation::relu),
                ({1, 3}), {1, 0, 3});
  EXPECT_TENSOR(raw::linear(zeros({2, 0}), zeros({3, 0}), make({1, 2, 3}, {3})), ({2, 3}),
                {1, 2, 3, 1, 2, 3});
  EXPECT_WEFT_ERROR(raw::linear(ones({2, 3}), ones({4, 2})), Shape,
                    "[linear] input features: got 3, weight expects 2 (x [2,3], w [4,2])");
  EXPECT_WEFT_ERROR(raw::linear(ones({2, 3}), ones({4, 3}), ones({3})), Shape,
                    "[linear] bias: got [3], expected [4]");
  EXPECT_WEFT_ERROR(raw::linear(ones({2, 3}), ones({3})), Shape,
                    "[linear] weight: got [3], expected [out,in]");
  EXPECT_WEFT_ERROR(raw::linear(scalar(1), ones({1, 1})), Shape, "[linear] input: got a scalar");
}

}  // namespace
}  // namespace weft
