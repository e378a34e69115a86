#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "weft/core/runtime/log.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/tensor/elementwise.h"
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
using testing::near_values;
using testing::some;
using testing::values_of;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class ReduceTest : public testing::DeviceParam {};
WEFT_FOR_EACH_DEVICE(ReduceTest);

bool in(const Dims& dims, int i, int ndim) {
  if (dims.empty()) return true;
  for (std::int64_t d : dims) {
    if ((d < 0 ? d + ndim : d) == i) return true;
  }
  return false;
}

// Values of which not all results are the same.
Tensor operand(ReduceOp op, const Shape& shape, DType dtype) {
  // Products of floating factors near one stay in range; those of whole ones wrap around.
  if (op == ReduceOp::prod) {
    const bool floating = is_floating(dtype);
    return some(shape, dtype, floating ? 0.98 : 0.4, floating ? 1.02 : 3.4);
  }
  // Zeros and ones: mostly ones, and mostly zeros.
  if (op == ReduceOp::all || op == ReduceOp::any) {
    const double shift = op == ReduceOp::all ? 0.4 : -0.4;
    return raw::to(some(shape, DType::i64, shift, 1 + shift), dtype);
  }
  return some(shape, dtype, -2, 3);
}

// As the rows of a dense matrix, which the tests of the kernels reduce.
TEST_P(ReduceTest, EveryOpDtypeLayoutAndSetOfDims) {
  using enum ReduceOp;
  const std::pair<Shape, std::vector<Dims>> plans[] = {
      {{}, {{}, {0}, {-1}}},
      {{5}, {{}, {0}, {-1}}},
      {{1}, {{}, {0}}},
      {{2, 3, 4}, {{}, {0}, {1}, {2}, {-1, 0}, {0, 1}, {1, 2}, {2, 1, 0}}},
      {{2, 3, 4, 5}, {{0, 2, 3}, {1}, {1, 3}}},
      {{1, 7, 1}, {{0}, {1}, {0, 2}}},
      {{300, 70}, {{}, {0}, {1}}},
  };
  for (const ReduceOp op : {sum, mean, prod, max, min, all, any}) {
    for (DType dtype : kAllDTypes) {
      if (op == mean && !is_floating(dtype)) continue;  // refused
      for (const auto& [shape, sets] : plans) {
        const Tensor base = operand(op, shape, dtype);
        for (const Dims& dims : sets) {
          Shape kept = shape, dropped;
          Dims order, reduced;
          for (int i = 0; i < shape.size(); ++i) {
            if (in(dims, i, shape.size())) {
              kept[i] = 1;
              reduced.push_back(i);
            } else {
              dropped.push_back(shape[i]);
              order.push_back(i);
            }
          }
          for (const std::int64_t d : reduced) order.push_back(d);
          const std::int64_t rows = numel(kept);
          const Tensor matrix =
              raw::reshape(raw::permute(base, order), {rows, numel(shape) / rows});
          const std::vector<double> want = values_of(raw::reduce(op, matrix, {1}, false));
          for (const Tensor& x : layouts(base)) {
            SCOPED_TRACE("op " + std::to_string(int(op)) + " " + to_string(dtype) + " " +
                         to_string(shape) + " over " + to_string(dims));
            const Tensor y = raw::reduce(op, x, dims, false);
            // For sums of many terms the bound depends on the size of the terms, not of the sum.
            const double count = double(numel(shape)) / double(rows);
            const double relative = testing::tolerance(y.dtype()) * std::sqrt(count) * 3;
            EXPECT_EQ(y.shape(), dropped);
            EXPECT_TRUE(near_values(y, want, relative));
            const Tensor k = raw::reduce(op, x, dims, true);
            EXPECT_EQ(k.shape(), kept);
            EXPECT_TRUE(near_values(k, want, relative));
            const bool whole = (op == sum || op == prod) && !is_floating(dtype);
            EXPECT_EQ(y.dtype(), op == all || op == any ? DType::boolean
                                 : whole                ? DType::i64
                                                        : dtype);
          }
        }
      }
    }
  }
}

TEST_P(ReduceTest, NamedForms) {
  const Tensor x = make({1, 2, 3, 4}, {2, 2});
  EXPECT_TENSOR(raw::sum(x), ({}), {10});
  EXPECT_TENSOR(raw::mean(x, {0}), ({2}), {2, 3});
  EXPECT_TENSOR(raw::prod(x, {1}, true), ({2, 1}), {2, 12});
  EXPECT_TENSOR(raw::max(x, {1}), ({2}), {2, 4});
  EXPECT_TENSOR(raw::min(x, {0}), ({2}), {1, 2});
  EXPECT_TENSOR(raw::all(x), ({}), {1});
  EXPECT_TENSOR(raw::any(raw::gt(x, 3), {0}), ({2}), {0, 1});
}

TEST_P(ReduceTest, OfNothing) {
  EXPECT_TENSOR(raw::sum(zeros({0})), ({}), {0});
  EXPECT_TENSOR(raw::sum(zeros({2, 0}), {1}), ({2}), {0, 0});
  EXPECT_TENSOR(raw::sum(zeros({2, 0}), {0}), ({0}), {});
  EXPECT_TENSOR(raw::prod(zeros({0})), ({}), {1});
  EXPECT_TENSOR(raw::all(zeros({0})), ({}), {1});
  EXPECT_TENSOR(raw::any(zeros({0})), ({}), {0});
  EXPECT_TRUE(near_values(raw::mean(zeros({0})), {kNaN}, 0));
  EXPECT_TRUE(near_values(raw::var(zeros({0})), {kNaN}, 0));
  EXPECT_TENSOR(raw::norm(zeros({0})), ({}), {0});
  EXPECT_TENSOR(raw::max(zeros({0, 2}), {1}), ({0}), {});
  EXPECT_WEFT_ERROR(raw::max(zeros({0})), Shape,
                    "[max] no elements to choose from: dimension 0 of [0] is empty");
  EXPECT_WEFT_ERROR(raw::min(zeros({2, 0}), {1}), Shape,
                    "[min] no elements to choose from: dimension 1 of [2,0] is empty");
  EXPECT_WEFT_ERROR(raw::argmax(zeros({2, 0}), 1), Shape,
                    "[argmax] no elements to choose from: dimension 1 of [2,0] is empty");
  EXPECT_EQ(raw::argmax(zeros({0, 2}), 1).shape(), Shape{0});
  // An empty choice is an error even if the result is empty.
  EXPECT_WEFT_ERROR(raw::argmin(zeros({0, 0}), 1), Shape,
                    "[argmin] no elements to choose from: dimension 1 of [0,0] is empty");
  EXPECT_WEFT_ERROR(raw::min(zeros({0, 3, 0}), {2}), Shape,
                    "[min] no elements to choose from: dimension 2 of [0,3,0] is empty");
}

// Beyond 2^53, where a double would round.
TEST_P(ReduceTest, IntegerSumsAreExact) {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const Tensor x = raw::to(from_vector<std::int64_t>({0, most - 1, 1, 3}, {2, 2}), device());
  EXPECT_EQ(raw::sum(x, 1).to_vector<std::int64_t>(), (std::vector<std::int64_t>{most - 1, 4}));
  EXPECT_EQ(raw::prod(x, 0).to_vector<std::int64_t>(), (std::vector<std::int64_t>{0, most - 5}));
}

TEST_P(ReduceTest, Errors) {
  EXPECT_WEFT_ERROR(raw::sum(ones({2, 3}), {2}), Shape, "[sum] dimension: got 2, expected -2 to 1");
  EXPECT_WEFT_ERROR(raw::sum(ones({2, 3}), {1, -1}), Shape,
                    "[sum] dimension 1 appears twice in [1,-1]");
  EXPECT_WEFT_ERROR(raw::mean(ones({2}, DType::i64)), Dtype,
                    "[mean] needs a floating dtype: x is i64; convert it with to(dtype)");
  EXPECT_WEFT_ERROR(raw::var(ones({2}, DType::i64)), Dtype, "[var] needs a floating dtype");
  EXPECT_WEFT_ERROR(raw::norm(ones({2}, DType::u8)), Dtype, "[norm] needs a floating dtype");
  EXPECT_WEFT_ERROR(raw::argmax(ones({2}), 1), Shape, "[argmax] dimension: got 1");
  // This must not become dimension 0, as it would if cut to 32 bits.
  const std::int64_t far = 1LL << 32;
  EXPECT_WEFT_ERROR(raw::sum(ones({2}), {far}), Shape, "[sum] dimension: got 4294967296");
  EXPECT_WEFT_ERROR(raw::var(ones({2}), {far}), Shape, "dimension: got 4294967296");
  EXPECT_WEFT_ERROR(raw::norm(ones({2}), {far}), Shape, "[norm] dimension: got 4294967296");
  EXPECT_WEFT_ERROR(raw::argmin(ones({2}), far), Shape, "[argmin] dimension: got 4294967296");
}

TEST_P(ReduceTest, Var) {
  for (DType dtype : kFloating) {
    for (const Tensor& x : layouts(make({1, 2, 3, 4, 2, 2}, {3, 2}, dtype))) {
      EXPECT_NEAR_TENSOR(raw::var(x), Shape{}, (std::vector<double>{16.0 / 15}));
      EXPECT_NEAR_TENSOR(raw::var(x, {0}, 0), Shape{2}, (std::vector<double>{2.0 / 3, 8.0 / 9}));
      EXPECT_NEAR_TENSOR(raw::var(x, {1}, 1, true), (Shape{3, 1}),
                         (std::vector<double>{0.5, 0.5, 0}));
      EXPECT_EQ(raw::var(x).dtype(), dtype);
    }
  }
  EXPECT_TRUE(near_values(raw::var(ones({1})), {kNaN}, 0));
  EXPECT_EQ(raw::var(raw::add(make({0, 1}, {2}), 1e4)).item<double>(), 0.5);
}

TEST_P(ReduceTest, VarWithoutDegreesOfFreedomWarns) {
  struct Sink final : LogSink {
    std::vector<std::string> warnings;
    void write(Level level, std::string_view message) override {
      if (level == Level::warning) warnings.emplace_back(message);
    }
  } sink;
  const Scoped<LogSink*> scope(&ThreadState::log, &sink);
  const Tensor x = make({1, 2, 3, 2, 2, 2}, {2, 3});
  EXPECT_TRUE(near_values(raw::var(x, {1}, 2.5), {4, 0}, 1e-6));
  EXPECT_TRUE(sink.warnings.empty());
  EXPECT_TRUE(near_values(raw::var(x, {1}, 3), {kInf, kNaN}, 0));
  EXPECT_TRUE(near_values(raw::var(x, {1}, 4), {kInf, kNaN}, 0));
  EXPECT_EQ(sink.warnings,
            (std::vector<std::string>{"var: no degrees of freedom: 3 values, correction 3",
                                      "var: no degrees of freedom: 3 values, correction 4"}));
}

TEST_P(ReduceTest, Norm) {
  for (DType dtype : kFloating) {
    for (const Tensor& x : layouts(make({3, 4, 0, -5}, {2, 2}, dtype))) {
      EXPECT_NEAR_TENSOR(raw::norm(x), Shape{}, (std::vector<double>{std::sqrt(50.0)}));
      EXPECT_NEAR_TENSOR(raw::norm(x, {1}), Shape{2}, (std::vector<double>{5, 5}));
    }
  }
  // With single values there is no square to overflow.
  EXPECT_TENSOR(raw::norm(make({-1e30, 1e-30}, {2, 1}, DType::f64), {1}), ({2}), {1e30, 1e-30});
  EXPECT_TENSOR(raw::norm(make({-0x1p100, 0x1p-100}, {2, 1}), {1}), ({2}), {0x1p100, 0x1p-100});
}

TEST_P(ReduceTest, ArgReduce) {
  for (DType dtype : kAllDTypes) {
    if (dtype == DType::boolean) continue;
    for (const Tensor& x : layouts(make({1, 3, 3, 5, 0, 5}, {2, 3}, dtype))) {
      EXPECT_TENSOR(raw::argmax(x, 1), ({2}), {1, 0});
      EXPECT_TENSOR(raw::argmax(x, 0), ({3}), {1, 0, 1});
      EXPECT_TENSOR(raw::argmin(x, -1, true), ({2, 1}), {0, 1});
      EXPECT_EQ(raw::argmin(x, 0).dtype(), DType::i64);
    }
  }
  EXPECT_TENSOR(raw::argmax(make({1, kNaN, 5, kNaN}, {4}), 0), ({}), {1});
  EXPECT_TENSOR(raw::argmin(make({1, kNaN, 5, kNaN}, {4}), 0), ({}), {1});
  EXPECT_TENSOR(raw::argmax(scalar(3), 0), ({}), {0});
  EXPECT_TENSOR(raw::argmax(make({0, 1, 1}, {3}, DType::boolean), 0), ({}), {1});
}

TEST_P(ReduceTest, NaNAndInfinity) {
  EXPECT_TRUE(near_values(raw::max(make({1, kNaN, 3}, {3})), {kNaN}, 0));
  EXPECT_TRUE(near_values(raw::min(make({1, kNaN, 3}, {3})), {kNaN}, 0));
  EXPECT_TRUE(near_values(raw::sum(make({kInf, 1}, {2})), {kInf}, 0));
  EXPECT_TENSOR(raw::all(make({kNaN, 1}, {2})), ({}), {1});
}

TEST_P(ReduceTest, SumTo) {
  const Tensor x = make({1, 2, 3, 4, 5, 6}, {2, 3});
  EXPECT_TENSOR(raw::sum_to(x, {3}), ({3}), {5, 7, 9});
  EXPECT_TENSOR(raw::sum_to(x, {2, 1}), ({2, 1}), {6, 15});
  EXPECT_TENSOR(raw::sum_to(x, {1, 1}), ({1, 1}), {21});
  EXPECT_TENSOR(raw::sum_to(x, {}), ({}), {21});
  EXPECT_TRUE(raw::sum_to(x, {2, 3}).same(x));
  EXPECT_TENSOR(raw::sum_to(ones({1, 1, 3}), {3}), ({3}), {1, 1, 1});
  EXPECT_TENSOR(raw::sum_to(zeros({0, 3}), {1, 3}), ({1, 3}), {0, 0, 0});
  for (const DType dtype : {DType::i64, DType::i32, DType::u8, DType::boolean}) {
    const Tensor y = raw::sum_to(ones({300, 2}, dtype), {2});
    EXPECT_EQ(y.dtype(), DType::i64);
    EXPECT_TENSOR(y, ({2}), {300, 300});
  }
  const Tensor nhwc = raw::contiguous(some({2, 3, 4, 5}), MemoryFormat::nhwc);
  EXPECT_EQ(raw::sum_to(nhwc, {3, 1, 1}).shape(), (Shape{3, 1, 1}));
  EXPECT_TRUE(
      near_values(raw::sum_to(nhwc, {3, 1, 1}), values_of(raw::sum(nhwc, {0, 2, 3})), 1e-5));
  EXPECT_WEFT_ERROR(raw::sum_to(x, {2}), Shape, "[sum_to] [2,3] is no broadcast of [2]");
  EXPECT_WEFT_ERROR(raw::sum_to(x, {1, 2, 3}), Shape, "[sum_to]");
}

}  // namespace
}  // namespace weft
