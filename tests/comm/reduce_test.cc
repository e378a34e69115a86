// Element-wise reductions on the host.
#include "weft/comm/backend/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/expect_error.h"

namespace weft::comm {
namespace {

using testing::Doubles;
using testing::Numbers;

Doubles reduced(const Doubles& into, const Doubles& from, DType dtype, ReduceOp op) {
  Numbers x(into, dtype), y(from, dtype);
  reduce_into(x.buffer(), y.buffer().data, op);
  return x.doubles();
}

TEST(ReduceInto, DoesEveryOpInEveryDtype) {
  const Doubles a = {1, 7, 3, 0, 9}, b = {2, 4, 3, 5, 0};
  for (const DType dtype :
       {DType::f32, DType::f64, DType::bf16, DType::i64, DType::i32, DType::u8}) {
    EXPECT_EQ(reduced(a, b, dtype, ReduceOp::sum), (Doubles{3, 11, 6, 5, 9})) << dtype;
    EXPECT_EQ(reduced(a, b, dtype, ReduceOp::avg), (Doubles{3, 11, 6, 5, 9})) << dtype;
    EXPECT_EQ(reduced(a, b, dtype, ReduceOp::product), (Doubles{2, 28, 9, 0, 0})) << dtype;
    EXPECT_EQ(reduced(a, b, dtype, ReduceOp::min), (Doubles{1, 4, 3, 0, 0})) << dtype;
    EXPECT_EQ(reduced(a, b, dtype, ReduceOp::max), (Doubles{2, 7, 3, 5, 9})) << dtype;
  }
}

TEST(ReduceInto, OfBooleansSumAndMaxAreAnyProductAndMinAll) {
  const Doubles a = {0, 0, 1, 1}, b = {0, 1, 0, 1};
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max}) {
    EXPECT_EQ(reduced(a, b, DType::boolean, op), (Doubles{0, 1, 1, 1})) << to_string(op);
  }
  for (const ReduceOp op : {ReduceOp::product, ReduceOp::min}) {
    EXPECT_EQ(reduced(a, b, DType::boolean, op), (Doubles{0, 0, 0, 1})) << to_string(op);
  }
}

TEST(ReduceInto, Bf16IsComputedInF32AndRoundedToNearestEven) {
  // At 256, bf16's 8 bits give steps of 2: 257 and 259 are half-way between two neighbours.
  EXPECT_EQ(reduced({256, 258, 256}, {1, 1, 3}, DType::bf16, ReduceOp::sum),
            (Doubles{256, 260, 260}));
  EXPECT_EQ(reduced({17}, {17}, DType::bf16, ReduceOp::product), (Doubles{288}));  // 289
}

TEST(ReduceInto, IntegersWrapAround) {
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  std::int64_t x[] = {kMost, kMost};
  const std::int64_t one[] = {1, 1}, two[] = {2, 2};
  reduce_into({x, 1, DType::i64}, one, ReduceOp::sum);
  reduce_into({x + 1, 1, DType::i64}, two, ReduceOp::product);
  EXPECT_EQ(x[0], std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(x[1], -2);
  EXPECT_EQ(reduced({200}, {100}, DType::u8, ReduceOp::sum), (Doubles{44}));
  const std::int32_t low = std::numeric_limits<std::int32_t>::min();
  std::int32_t y = low;
  reduce_into({&y, 1, DType::i32}, &low, ReduceOp::sum);
  EXPECT_EQ(y, 0);
}

TEST(ReduceInto, ANanWinsFromEitherSide) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
      for (const double value : reduced({nan, 1, nan}, {1, nan, nan}, dtype, op)) {
        EXPECT_TRUE(std::isnan(value)) << dtype << " " << to_string(op);
      }
    }
  }
}

TEST(ReduceInto, MinAndMaxOfNegativeNumbers) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::i64, DType::i32}) {
    EXPECT_EQ(reduced({-1, -5}, {-3, 2}, dtype, ReduceOp::min), (Doubles{-3, -5})) << dtype;
    EXPECT_EQ(reduced({-1, -5}, {-3, 2}, dtype, ReduceOp::max), (Doubles{-1, 2})) << dtype;
  }
}

TEST(FinishReduce, DividesForAvgAlone) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    Numbers x({6, 9}, dtype);
    finish_reduce(x.buffer(), ReduceOp::sum, 4);
    EXPECT_EQ(x.doubles(), (Doubles{6, 9}));
    finish_reduce(x.buffer(), ReduceOp::avg, 4);
    EXPECT_EQ(x.doubles(), (Doubles{1.5, 2.25}));
  }
  Numbers x({5}, DType::f32);  // must divide: multiplying by the inverse gives another number
  finish_reduce(x.buffer(), ReduceOp::avg, 3);
  EXPECT_EQ(*x.as<float>(), 5.0f / 3.0f);
}

TEST(FinishReduce, RefusesAnAverageOfIntegers) {
  Numbers x({6}, DType::i64);
  finish_reduce(x.buffer(), ReduceOp::sum, 2);
  EXPECT_WEFT_ERROR(finish_reduce(x.buffer(), ReduceOp::avg, 2), Dtype, "floating dtype, got i64");
}

TEST(ReduceOpName, IsThatOfTheEnumerator) {
  EXPECT_STREQ(to_string(ReduceOp::sum), "sum");
  EXPECT_STREQ(to_string(ReduceOp::avg), "avg");
  EXPECT_STREQ(to_string(ReduceOp::product), "product");
  EXPECT_STREQ(to_string(ReduceOp::min), "min");
  EXPECT_STREQ(to_string(ReduceOp::max), "max");
}

}  // namespace
}  // namespace weft::comm
