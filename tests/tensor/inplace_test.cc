#include <cmath>
#include <limits>
#include <set>

#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/rng.h"
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
using testing::some;
using testing::values_of;
using testing::with_gaps;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class InPlaceTest : public testing::DeviceParam {};
WEFT_FOR_EACH_DEVICE(InPlaceTest);

TEST_P(InPlaceTest, UnaryEqualsTheFormThatReturns) {
  for (DType dtype : kFloating) {
    for (UnaryOp op : {UnaryOp::neg, UnaryOp::exp, UnaryOp::relu, UnaryOp::sigmoid}) {
      for (const Tensor& y : layouts(some({3, 4, 2}, dtype))) {
        const std::vector<double> want = values_of(raw::unary(op, y));
        EXPECT_TRUE(raw::unary_(op, y).same(y));
        EXPECT_EQ(values_of(y), want);
      }
    }
  }
  const Tensor whole = make({-2, 3}, {2}, DType::i32);
  raw::unary_(UnaryOp::relu, whole);
  EXPECT_TENSOR(whole, ({2}), {0, 3});
  raw::unary_(UnaryOp::relu, zeros({0}));
}

TEST_P(InPlaceTest, BinaryEqualsTheFormThatReturns) {
  for (DType dtype : kFloating) {
    for (BinaryOp op : {BinaryOp::add, BinaryOp::sub, BinaryOp::mul, BinaryOp::div}) {
      for (const Shape& other : {Shape{3, 4}, Shape{4}, Shape{}, Shape{3, 1}}) {
        for (const Tensor& b : layouts(some(other, dtype, 1, 2, 2))) {
          for (const Tensor& y : layouts(some({3, 4}, dtype))) {
            const std::vector<double> want = values_of(raw::binary(op, y, b));
            EXPECT_TRUE(raw::binary_(op, y, b).same(y));
            EXPECT_EQ(values_of(y), want);
          }
        }
      }
    }
  }
}

TEST_P(InPlaceTest, MixedDtypesComputeInThePromotedOne) {
  const Tensor y = make({1}, {1}, DType::bf16);
  raw::binary_(BinaryOp::mul, y, make({1.001}, {1}));
  EXPECT_EQ(y.dtype(), DType::bf16);
  raw::binary_(BinaryOp::add, y, make({3}, {1}, DType::i64));
  EXPECT_TENSOR(y, ({1}), {4});
  const Tensor whole = make({1}, {1}, DType::i64);
  raw::binary_(BinaryOp::add, whole, make({2}, {1}, DType::u8));
  EXPECT_TENSOR(whole, ({1}), {3});
}

// As in PyTorch, a tensor without dimensions is converted to the written tensor's dtype first.
TEST_P(InPlaceTest, DivisorsThatTheDtypeTurnsIntoZero) {
  const Tensor bytes = make({7}, {1}, DType::u8), whole = make({7}, {1}, DType::i32);
  for (const BinaryOp op : {BinaryOp::remainder, BinaryOp::floor_divide}) {
    EXPECT_WEFT_ERROR(raw::binary_(op, bytes, scalar(256, DType::i64)), InvalidArgument,
                      "division by 0 of integers (u8)");
    EXPECT_WEFT_ERROR(raw::binary_(op, whole, scalar(0x1p32, DType::i64)), InvalidArgument,
                      "division by 0 of integers (i32)");
  }
  EXPECT_TENSOR(bytes, ({1}), {7});
  EXPECT_TENSOR(whole, ({1}), {7});
}

TEST_P(InPlaceTest, AddScaled) {
  for (DType dtype : kFloating) {
    for (const Tensor& y : layouts(make({1, 2, 3, 4}, {2, 2}, dtype))) {
      raw::add_scaled_(y, 0.5, make({2, 4}, {2}, dtype));
      EXPECT_TENSOR(y, ({2, 2}), {2, 4, 4, 6});
    }
  }
  const Tensor whole = make({1, 2}, {2}, DType::i32);
  raw::add_scaled_(whole, 3, whole);
  EXPECT_TENSOR(whole, ({2}), {4, 8});
  const Tensor y = ones({2}, DType::bf16);
  raw::add_scaled_(y, 2, make({1, 2}, {2}));
  EXPECT_TENSOR(y, ({2}), {3, 5});
}

// The sum is computed in the wider dtype and rounded once; a tensor without dimensions widens no
// other.
TEST_P(InPlaceTest, AddScaledRoundsAWiderOperandWithTheSum) {
  const Tensor y = make({-16777216, -3e38}, {2}), wide = make({16777217, 4e38}, {2}, DType::f64);
  const std::vector<double> want{1, static_cast<float>(4e38 - 3e38f)};
  EXPECT_EQ(values_of(raw::add_scaled_(raw::clone(y), 1, wide)), want);
  EXPECT_EQ(values_of(raw::add_scaled_(raw::clone(y), -0.5, raw::mul(wide, -2))), want);
  EXPECT_EQ(values_of(raw::add_from_afar_(raw::clone(y), wide)), want);
  for (const Tensor& half : layouts(make({1, 2, -256, 4}, {2, 2}, DType::bf16))) {
    EXPECT_EQ(&raw::add_scaled_(half, 1, make({0, 0x1p-10, 257, 0}, {2, 2})), &half);
    EXPECT_TENSOR(half, ({2, 2}), {1, 2, 1, 4});
  }
  const Tensor row = make({-256, 1}, {2}, DType::bf16);
  raw::add_scaled_(row, 1, scalar(257));  // 256 in bf16
  EXPECT_TENSOR(row, ({2}), {0, 256});
  EXPECT_WEFT_ERROR(raw::add_scaled_(raw::expand(ones({1}), {2}), 1, wide), InvalidArgument,
                    "[add_] several elements share memory");
}

TEST_P(InPlaceTest, AddFromAfar) {
  set_host_devices(2);
  for (const Device afar : {Device("cpu:1"), Device("cpu:0")}) {
    for (DType dtype : kFloating) {
      for (const Tensor& y : layouts(make({1, 2, 3, 4}, {2, 2}, dtype))) {
        for (const Tensor& x : layouts(make({2, 4, 6, 8}, {2, 2}, dtype))) {
          raw::fill_(y, 1);
          EXPECT_EQ(&raw::add_from_afar_(y, raw::to(x, afar)), &y);
          EXPECT_TENSOR(y, ({2, 2}), {3, 5, 7, 9});
        }
      }
    }
    const Tensor whole = make({1, 2}, {2}, DType::i32);
    raw::add_from_afar_(whole, raw::to(make({3, 4}, {2}, DType::i32), afar));
    EXPECT_TENSOR(whole, ({2}), {4, 6});
    const Tensor empty = make({}, {0}, DType::f32);
    raw::add_from_afar_(empty, raw::to(make({}, {0}, DType::f32), afar));
  }
  set_host_devices(1);
}

TEST_P(InPlaceTest, Numbers) {
  for (DType dtype : kAllDTypes) {
    const Tensor y = make({0, 1}, {2}, dtype);
    raw::fill_(y, 1);
    EXPECT_TENSOR(y, ({2}), {1, 1});
    raw::zero_(y);
    EXPECT_TENSOR(y, ({2}), {0, 0});
    if (dtype == DType::boolean) continue;
    raw::add_(y, 3);
    raw::mul_(y, 2);
    EXPECT_TENSOR(y, ({2}), {6, 6});
  }
  for (const Tensor& y : layouts(ones({3, 2}))) {
    raw::fill_(y, 2);
    EXPECT_TENSOR(y, ({3, 2}), {2, 2, 2, 2, 2, 2});
    raw::zero_(y);
    EXPECT_TENSOR(y, ({3, 2}), {0, 0, 0, 0, 0, 0});
  }
}

TEST_P(InPlaceTest, GapsStayUntouched) {
  const Tensor whole = full({3, 5}, 9);
  const Tensor part = raw::slice(raw::slice(whole, 0, 1, 2), 1, 1, 4, 2);
  raw::zero_(part);
  raw::add_(part, 1);
  raw::copy_(part, make({7, 8}, {1, 2}));
  raw::unary_(UnaryOp::neg, part);
  EXPECT_TENSOR(whole, ({3, 5}), {9, 9, 9, 9, 9, 9, -7, 9, -8, 9, 9, 9, 9, 9, 9});
}

TEST_P(InPlaceTest, OverlappingOperandsAreReadBeforeTheyAreWritten) {
  const Tensor x = make({1, 2, 3, 4}, {2, 2});
  raw::binary_(BinaryOp::add, x, raw::transpose(x, 0, 1));
  EXPECT_TENSOR(x, ({2, 2}), {2, 5, 5, 8});
  const Tensor line = make({1, 2, 3, 4, 5}, {5});
  raw::copy_(raw::slice(line, 0, 1, 5), raw::slice(line, 0, 0, 4));
  EXPECT_TENSOR(line, ({5}), {1, 1, 2, 3, 4});
  raw::add_scaled_(raw::slice(line, 0, 0, 4), 10, raw::slice(line, 0, 1, 5));
  EXPECT_TENSOR(line, ({5}), {11, 21, 32, 43, 4});
  raw::binary_(BinaryOp::mul, line, raw::select(line, 0, 4));
  EXPECT_TENSOR(line, ({5}), {44, 84, 128, 172, 16});
}

TEST_P(InPlaceTest, CopyConvertsAndBroadcasts) {
  for (DType from : kAllDTypes) {
    for (DType to : kAllDTypes) {
      for (const Tensor& y : layouts(zeros({2, 3}, to))) {
        raw::copy_(y, make({1, 0, 1}, {3}, from));
        EXPECT_TENSOR(y, ({2, 3}), {1, 0, 1, 1, 0, 1});
      }
    }
  }
  const Tensor y = zeros({3}, DType::i32);
  raw::copy_(y, make({-1.75, 0.5, 3e4}, {3}));
  EXPECT_TENSOR(y, ({3}), {-1, 0, 30000});
  const Tensor truth = zeros({2}, DType::boolean);
  raw::copy_(truth, make({0.25, 0}, {2}));
  EXPECT_TENSOR(truth, ({2}), {1, 0});
}

TEST_P(InPlaceTest, ErrorsLeaveTheTensorAsItWas) {
  const Tensor y = make({1, 2}, {2});
  const Tensor whole = make({1, 2}, {2}, DType::i32);
  const std::uint32_t version = y.storage()->version();
  EXPECT_WEFT_ERROR(raw::binary_(BinaryOp::add, y, ones({2, 2})), Shape,
                    "[add_] got [2,2], which does not broadcast to the written tensor's [2]");
  EXPECT_WEFT_ERROR(raw::copy_(y, ones({3})), Shape,
                    "[copy_] got [3], which does not broadcast to the written tensor's [2]");
  EXPECT_WEFT_ERROR(raw::add_scaled_(y, 1, ones({3})), Shape, "[add_]");
  EXPECT_WEFT_ERROR(raw::binary_(BinaryOp::add, whole, y), Dtype,
                    "[add_] the result is f32, which cannot be written into a tensor of i32");
  EXPECT_WEFT_ERROR(raw::binary_(BinaryOp::div, whole, whole), Dtype, "[div_] the result is f32");
  EXPECT_WEFT_ERROR(raw::unary_(UnaryOp::exp, whole), Dtype, "[exp_] the result is f32");
  EXPECT_WEFT_ERROR(raw::mul_(whole, 0.5), Dtype,
                    "[mul_] a tensor of i32 cannot take the number 0.5");
  EXPECT_WEFT_ERROR(raw::fill_(whole, 1e30), InvalidArgument,
                    "[fill_] a tensor of i32 cannot hold");
  EXPECT_TENSOR(y, ({2}), {1, 2});
  EXPECT_TENSOR(whole, ({2}), {1, 2});
  EXPECT_EQ(y.storage()->version(), version);
}

// Runs every operation that writes, on a floating y.
void expect_all_refused(const Tensor& y, const char* text) {
  const std::vector<double> before = values_of(y);
  const std::uint32_t version = y.storage()->version();
  const Tensor x = ones(y.shape());
  EXPECT_WEFT_ERROR(raw::unary_(UnaryOp::exp, y), InvalidArgument, text);
  EXPECT_WEFT_ERROR(raw::binary_(BinaryOp::add, y, y), InvalidArgument, text);
  EXPECT_WEFT_ERROR(raw::add_scaled_(y, 1, y), InvalidArgument, text);
  EXPECT_WEFT_ERROR(raw::add_from_afar_(y, x), InvalidArgument, text);
  EXPECT_WEFT_ERROR(raw::mul_(y, 2), InvalidArgument, text);
  EXPECT_WEFT_ERROR(raw::add_(y, 1), InvalidArgument, text);
  EXPECT_WEFT_ERROR(raw::fill_(y, 4), InvalidArgument, text);
  EXPECT_WEFT_ERROR(raw::zero_(y), InvalidArgument, text);
  EXPECT_WEFT_ERROR(raw::copy_(y, x), InvalidArgument, text);
  EXPECT_WEFT_ERROR(raw::uniform_(y), InvalidArgument, text);
  EXPECT_WEFT_ERROR(raw::normal_(y), InvalidArgument, text);
  EXPECT_WEFT_ERROR(raw::bernoulli_(y, 0.5), InvalidArgument, text);
  EXPECT_WEFT_ERROR(raw::index_add_(y, 0, arange(y.shape(0)), x), InvalidArgument, text);
  EXPECT_WEFT_ERROR(raw::scatter_add_(y, 0, zeros(y.shape(), DType::i64), x), InvalidArgument,
                    text);
  EXPECT_EQ(values_of(y), before);
  EXPECT_EQ(y.storage()->version(), version);
}

TEST_P(InPlaceTest, ExpandedTensorsAreNotWritten) {
  expect_all_refused(raw::expand(ones({1, 2}), {3, 2}),
                     "several elements share memory ([3,2], strides [0,1])");
  const Tensor y = ones({2});
  raw::add_(raw::expand(y, {1, 2}), 1);
  raw::fill_(raw::expand(ones({1, 2}), {0, 2}), 1);
  EXPECT_TENSOR(y, ({2}), {2, 2});
}

TEST_P(InPlaceTest, OverlappingViewsAreNotWritten) {
  const Tensor line = arange(0, 10, 1, DType::f32);
  const auto view = [&](const Shape& shape, const Strides& strides) {
    return as_strided(line.storage(), DType::f32, shape, strides);
  };
  expect_all_refused(view({3, 4}, {1, 1}), "several elements share memory ([3,4], strides [1,1])");
  // Only the last element of the first row and the first one of the last row share a place.
  expect_all_refused(view({3, 2}, {2, 4}), "several elements share memory");
  // The places 0, 2, 4, 3, 5, 7 all differ.
  const Tensor apart = view({2, 3}, {3, 2});
  raw::fill_(apart, -1);
  raw::add_(apart, -1);
  raw::copy_(apart, raw::add(apart, ones({2, 3})));
  EXPECT_TENSOR(line, ({10}), {-1, 1, -1, -1, -1, -1, 6, -1, 8, 9});
}

// Compared with the list of all places. Only on the host, because the check is the same for all
// devices.
TEST(InPlaceOnHostTest, LayoutsAreWrittenIfNoTwoElementsMeet) {
  const Tensor memory = zeros({4096}, {DType::u8, Device()});
  Generator generator(3);
  const auto draw = [&](std::int64_t below) {
    return static_cast<std::int64_t>(generator.random64() % static_cast<std::uint64_t>(below));
  };
  int written = 0;
  for (int i = 0; i < 10000; ++i) {
    Shape shape;
    Strides strides;
    const std::int64_t widest = 1 + draw(40);
    for (std::int64_t dims = draw(5); dims > 0; --dims) {
      shape.push_back(draw(10) == 0 ? 0 : 1 + draw(5));
      strides.push_back(draw(widest));
    }
    std::set<std::int64_t> places;
    testing::for_each_index(shape, [&](const Dims& at) {
      std::int64_t place = 0;
      for (int d = 0; d < shape.size(); ++d) place += at[d] * strides[d];
      places.insert(place);
    });
    const bool apart = std::ssize(places) == numel(shape);
    written += apart;
    const Tensor y = as_strided(memory.storage(), DType::u8, shape, strides);
    if (apart) {
      EXPECT_NO_THROW(raw::fill_(y, 1)) << shape << " " << strides;
    } else {
      EXPECT_WEFT_ERROR(raw::fill_(y, 1), InvalidArgument, "several elements share memory");
    }
  }
  EXPECT_GT(written, 2000);
  EXPECT_LT(written, 8000);
}

TEST(InPlaceOnHostTest, LayoutsThatTakeTooLongToJudgeAreRefused) {
  const std::int64_t far = std::int64_t{1} << 20;
  const Tensor memory = empty({8 * far}, {DType::u8, Device()});
  const auto fill = [&](const Shape& shape, const Strides& strides) {
    raw::fill_(as_strided(memory.storage(), DType::u8, shape, strides), 1);
  };
  EXPECT_WEFT_ERROR(fill({3, 3}, {far, far + 1}), InvalidArgument,
                    "[fill_] cannot tell from 1048576 places whether several elements share memory "
                    "([3,3], strides [1048576,1048577])");
  // A common factor of the strides does not matter, nor does a dimension with a huge stride.
  fill({2, 3}, {3 * far, 2 * far});
  fill({2, 2, 3}, {4 * far, 3, 2});
  EXPECT_WEFT_ERROR(fill({2, 3, 3}, {4 * far, 1, 2}), InvalidArgument, "several elements share");
  // More elements than places.
  EXPECT_WEFT_ERROR(fill({far, 4}, {2, 1}), InvalidArgument, "several elements share");
}

TEST_P(InPlaceTest, NumbersThatTheDtypeDoesNotHold) {
  const Tensor bytes = make({1, 2}, {2}, DType::u8), whole = make({1, 2}, {2}, DType::i32);
  const Tensor narrow = make({1, 2}, {2}), truth = ones({2}, DType::boolean);
  for (const double value : {256.0, -1.0, 255.5, -0.5, 1e20, kNaN, kInf}) {
    EXPECT_WEFT_ERROR(raw::fill_(bytes, value), InvalidArgument, "[fill_] a tensor of u8 cannot");
  }
  EXPECT_WEFT_ERROR(raw::fill_(whole, 0x1p31), InvalidArgument, "a tensor of i32 cannot hold 2.14");
  EXPECT_WEFT_ERROR(raw::fill_(make({1}, {1}, DType::i64), 0x1p63), InvalidArgument, "i64 cannot");
  EXPECT_WEFT_ERROR(raw::fill_(narrow, 1e39), InvalidArgument,
                    "[fill_] a tensor of f32 cannot hold 1e+39");
  EXPECT_WEFT_ERROR(raw::fill_(make({1}, {1}, DType::bf16), -3.4e38), InvalidArgument, "bf16");
  for (const double value : {1e20, kNaN, -kInf}) {
    EXPECT_WEFT_ERROR(raw::add_(whole, value), InvalidArgument, "[add_] a tensor of i32 cannot");
    EXPECT_WEFT_ERROR(raw::mul_(whole, value), InvalidArgument, "[mul_] a tensor of i32 cannot");
  }
  EXPECT_WEFT_ERROR(raw::sub_(whole, 1e20), InvalidArgument, "i32 cannot hold 1e+20");
  EXPECT_WEFT_ERROR(raw::sub_(whole, 2.5), Dtype,
                    "[sub_] a tensor of i32 cannot take the number 2.5");
  EXPECT_WEFT_ERROR(raw::add_(truth, 1), Dtype, "[add_] a tensor of bool cannot take the number 1");
  EXPECT_TENSOR(bytes, ({2}), {1, 2});
  EXPECT_TENSOR(whole, ({2}), {1, 2});
  EXPECT_TENSOR(narrow, ({2}), {1, 2});
  // As in PyTorch: fractions are cut off, infinity is a valid float, anything is a valid bool, and
  // sums of integers are modulo 2^bits.
  EXPECT_TENSOR(raw::fill_(bytes, 2.5), ({2}), {2, 2});
  EXPECT_TENSOR(raw::add_(bytes, 300), ({2}), {46, 46});
  EXPECT_TENSOR(raw::fill_(whole, -2.5), ({2}), {-2, -2});
  EXPECT_TENSOR(raw::fill_(narrow, -kInf), ({2}), {-kInf, -kInf});
  EXPECT_TENSOR(raw::mul_(raw::fill_(narrow, 1), 1e39), ({2}), {kInf, kInf});
  EXPECT_TENSOR(raw::fill_(narrow, 3.4028235e38), ({2}), {0x1.fffffep127, 0x1.fffffep127});
  EXPECT_TENSOR(raw::fill_(truth, kNaN), ({2}), {1, 1});
}

// -2^63 is the last number that i64 holds at the lower end, 2^63 the first that it does not.
TEST_P(InPlaceTest, NumbersAtTheEndsOfI64) {
  constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min();
  const Tensor whole = from_vector<std::int64_t>({5, -1}, {2});
  raw::sub_(whole, -0x1p63);
  EXPECT_EQ(whole.to_vector<std::int64_t>(),
            (std::vector<std::int64_t>{least + 5, std::numeric_limits<std::int64_t>::max()}));
  raw::add_(whole, -0x1p63);
  EXPECT_EQ(whole.to_vector<std::int64_t>(), (std::vector<std::int64_t>{5, -1}));
  const Tensor narrow = make({5, -1}, {2}, DType::i32);
  EXPECT_TENSOR(raw::add_(narrow, -0x1p63), ({2}), {5, -1});
  EXPECT_TENSOR(raw::sub_(narrow, -0x1p63), ({2}), {5, -1});
  for (const Tensor& y : {whole, narrow}) {
    EXPECT_WEFT_ERROR(raw::add_(y, 0x1p63), InvalidArgument, "cannot hold 9.22");
    EXPECT_WEFT_ERROR(raw::sub_(y, 0x1p63), InvalidArgument, "cannot hold 9.22");
  }
  EXPECT_TENSOR(raw::sub_(make({5}, {1}), -0x1p63), ({1}), {0x1p63});
}

// The same as not in place. A square is a product of integers.
TEST_P(InPlaceTest, WhatBoolDoesNotHave) {
  const Tensor y = ones({2}, DType::boolean);
  EXPECT_WEFT_ERROR(raw::unary_(UnaryOp::square, y), Dtype,
                    "[square_] the result is i64, which cannot be written into a tensor of bool");
  EXPECT_WEFT_ERROR(raw::unary_(UnaryOp::neg, y), Dtype, "[neg_] not defined for bool");
  EXPECT_WEFT_ERROR(raw::unary_(UnaryOp::floor, y), Dtype, "[floor_] not defined for bool");
  EXPECT_WEFT_ERROR(raw::binary_(BinaryOp::sub, y, y), Dtype, "[sub_] not defined for bool");
  EXPECT_WEFT_ERROR(raw::binary_(BinaryOp::remainder, y, y), Dtype, "[remainder_] not defined");
  EXPECT_TENSOR(raw::unary_(UnaryOp::sign, y), ({2}), {1, 1});
  EXPECT_TENSOR(raw::binary_(BinaryOp::mul, y, zeros({2}, DType::boolean)), ({2}), {0, 0});
}

}  // namespace
}  // namespace weft
