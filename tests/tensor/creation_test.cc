#include "weft/tensor/creation.h"

#include <array>
#include <cmath>
#include <limits>

#include "weft/tests/core/expect_error.h"
#include "weft/tests/device_param.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::kAllDTypes;

class CreationTest : public testing::DeviceParam {};
WEFT_FOR_EACH_DEVICE(CreationTest);

TEST_P(CreationTest, FillsEveryDtype) {
  for (DType dtype : kAllDTypes) {
    EXPECT_EQ(zeros({2}, dtype).dtype(), dtype);
    EXPECT_TENSOR(zeros({2, 2}, dtype), ({2, 2}), {0, 0, 0, 0});
    EXPECT_TENSOR(ones({3}, dtype), ({3}), {1, 1, 1});
    EXPECT_TENSOR(full({2}, 1, dtype), ({2}), {1, 1});
    EXPECT_TENSOR(scalar(1, dtype), ({}), {1});
    EXPECT_EQ(empty({2, 0}, dtype).numel(), 0);
  }
  EXPECT_TENSOR(full({2}, 2.5), ({2}), {2.5, 2.5});
  EXPECT_TENSOR(full({2}, 7.9, DType::i32), ({2}), {7, 7});
}

TEST_P(CreationTest, DefaultsToTheThreadsDevice) {
  EXPECT_EQ(zeros({1}).device(), device());
  EXPECT_EQ(zeros({1}, Device()).device(), Device());
  EXPECT_EQ(zeros({1}).dtype(), DType::f32);
}

TEST_P(CreationTest, LikeKeepsADenseLayout) {
  const Tensor x = zeros({2, 3, 4, 5}, [] {
    TensorOptions options(DType::f64);
    options.channels_last = true;
    return options;
  }());
  EXPECT_TRUE(x.is_channels_last());
  EXPECT_FALSE(x.is_contiguous());
  for (const Tensor& like : {empty_like(x), zeros_like(x), ones_like(x)}) {
    EXPECT_EQ(like.strides(), x.strides());
    EXPECT_EQ(like.dtype(), DType::f64);
  }
  EXPECT_TRUE(empty_like(testing::with_gaps(x)).is_contiguous());
}

TEST_P(CreationTest, Arange) {
  EXPECT_TENSOR(arange(0, 5), ({5}), {0, 1, 2, 3, 4});
  EXPECT_EQ(arange(0, 5).dtype(), DType::i64);
  EXPECT_TENSOR(arange(1, 2, 0.25, DType::f32), ({4}), {1, 1.25, 1.5, 1.75});
  EXPECT_TENSOR(arange(5, 0, -2), ({3}), {5, 3, 1});
  EXPECT_TENSOR(arange(3, 3), ({0}), {});
  // A floating number makes it f32, as in PyTorch.
  EXPECT_TENSOR(arange(0, 1, 0.25), ({4}), {0, 0.25, 0.5, 0.75});
  EXPECT_EQ(arange(0, 1, 0.25).dtype(), DType::f32);
  EXPECT_EQ(arange(0, 3.0).dtype(), DType::f32);
  EXPECT_EQ(arange(0.f, 3).dtype(), DType::f32);
  EXPECT_TENSOR(arange(3), ({3}), {0, 1, 2});
  EXPECT_EQ(arange(3).dtype(), DType::i64);
  EXPECT_TENSOR(arange(2.5), ({3}), {0, 1, 2});
  EXPECT_EQ(arange(3, DType::f64).dtype(), DType::f64);
  // The numbers without their fractions count, not the number of steps between the bounds.
  EXPECT_TENSOR(arange(1, 10.5, 1, DType::i64), ({9}), {1, 2, 3, 4, 5, 6, 7, 8, 9});
  EXPECT_TENSOR(arange(-0.5, 2.9, 1, DType::i32), ({2}), {0, 1});
  EXPECT_TENSOR(arange(5, 0.5, -1, DType::i64), ({5}), {5, 4, 3, 2, 1});
  EXPECT_TENSOR(arange(0, 5, 1.5, DType::i64), ({5}), {0, 1, 2, 3, 4});
  EXPECT_TENSOR(arange(0, 2.5, 1, DType::f32), ({3}), {0, 1, 2});
  EXPECT_WEFT_ERROR(arange(0, 1, 0.5, DType::i64), InvalidArgument,
                    "[arange] step 0.5 is 0 as a whole number; ask for a floating dtype");
  EXPECT_WEFT_ERROR(arange(0, 5, 0), InvalidArgument,
                    "[arange] needs finite bounds and a step other");
  EXPECT_WEFT_ERROR(arange(0, 0x1p62), InvalidArgument, "[arange] too many elements");
  EXPECT_WEFT_ERROR(arange(0x1p62, 0x1.8p63, 0x1p62, DType::i64), InvalidArgument,
                    "[arange] a tensor of i64 cannot hold 9.22337e+18");
  EXPECT_WEFT_ERROR(arange(0, 5, -1), InvalidArgument, "[arange] step -1 leads away from end");
  EXPECT_WEFT_ERROR(arange(0, std::numeric_limits<double>::infinity()), InvalidArgument, "finite");
}

TEST_P(CreationTest, NumbersInNestedBraces) {
  EXPECT_TENSOR(tensor({{1, 2}, {3, 4.5}}), ({2, 2}), {1, 2, 3, 4.5});
  EXPECT_TENSOR(tensor({{1}, {2}}), ({2, 1}), {1, 2});
  EXPECT_TENSOR(tensor({{{1, 2}}, {{3, 4}}}, DType::i64), ({2, 1, 2}), {1, 2, 3, 4});
  EXPECT_TENSOR(tensor({5}), ({1}), {5});
  EXPECT_TENSOR(tensor(5), ({}), {5});
  EXPECT_TENSOR(tensor({}), ({0}), {});
  EXPECT_TENSOR(tensor({{}, {}}), ({2, 0}), {});
  EXPECT_WEFT_ERROR(tensor({{1, 2}, {3}}), InvalidArgument,
                    "[tensor] row 1: got [1], row 0 is [2]");
  EXPECT_WEFT_ERROR(tensor({{1}, 2}), InvalidArgument, "[tensor] row 1: got [], row 0 is [1]");
}

TEST_P(CreationTest, OneNumberIsAShape) {
  EXPECT_EQ(zeros(3).shape(), Shape{3});
  EXPECT_EQ(raw::reshape(zeros({2, 3}), -1).shape(), Shape{6});
  EXPECT_EQ(raw::sum(zeros({2, 3}), -1).shape(), Shape{2});
}

TEST_P(CreationTest, NumbersThatTheDtypeDoesNotHold) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  const auto u8 = DType::u8;
  EXPECT_WEFT_ERROR(full({2}, 300, u8), InvalidArgument, "[full] a tensor of u8 cannot hold 300");
  EXPECT_WEFT_ERROR(full({2}, nan, DType::i64), InvalidArgument, "[full] a tensor of i64 cannot");
  EXPECT_WEFT_ERROR(full({2}, 1e39), InvalidArgument, "[full] a tensor of f32 cannot hold 1e+39");
  EXPECT_WEFT_ERROR(full_like(ones({2}, u8), -1), InvalidArgument, "[full_like] a tensor of u8");
  EXPECT_WEFT_ERROR(scalar(1e10, DType::i32), InvalidArgument, "[scalar] a tensor of i32 cannot");
  EXPECT_WEFT_ERROR(tensor({1, 256}, u8), InvalidArgument, "[tensor] a tensor of u8 cannot hold");
  EXPECT_WEFT_ERROR(tensor({1, 1e39}), InvalidArgument, "[tensor] a tensor of f32 cannot hold");
  EXPECT_WEFT_ERROR(arange(0, 257, 1, u8), InvalidArgument,
                    "[arange] a tensor of u8 cannot hold 256");
  EXPECT_WEFT_ERROR(arange(-1, 3, 1, u8), InvalidArgument,
                    "[arange] a tensor of u8 cannot hold -1");
  EXPECT_WEFT_ERROR(arange(1e20, 3e20, 1e20, DType::i64), InvalidArgument,
                    "[arange] a tensor of i64 cannot hold 1e");
  EXPECT_WEFT_ERROR(linspace(0, 256, 3, u8), InvalidArgument, "[linspace] a tensor of u8 cannot");
  EXPECT_WEFT_ERROR(linspace(nan, 2, 3, DType::i32), InvalidArgument, "[linspace] a tensor of i32");
  EXPECT_WEFT_ERROR(linspace(0, 1e39, 2), InvalidArgument,
                    "[linspace] a tensor of f32 cannot hold");
  EXPECT_TENSOR(arange(250, 256, 3, u8), ({2}), {250, 253});
  EXPECT_TENSOR(arange(3, 3, 1, u8), ({0}), {});
  EXPECT_TENSOR(full({1}, inf), ({1}), {inf});
  EXPECT_TENSOR(full({1}, 1e39, DType::f64), ({1}), {1e39});
  EXPECT_TENSOR(full({1}, nan, DType::boolean), ({1}), {1});
  EXPECT_TENSOR(tensor({-inf, 2.5, 254.9}, DType::boolean), ({3}), {1, 1, 1});
}

// Values from PyTorch.
TEST_P(CreationTest, LinspaceOfIntegers) {
  EXPECT_TENSOR(linspace(-2.7, 9.9, 5, DType::i64), ({5}), {-2, 0, 3, 6, 9});
  EXPECT_TENSOR(linspace(0.9, 3.9, 7, DType::i32), ({7}), {0, 0, 1, 1, 2, 2, 3});
  EXPECT_TENSOR(linspace(5, -5, 4, DType::i64), ({4}), {5, 1, -1, -5});
  EXPECT_TENSOR(linspace(10, 0, 4, DType::u8), ({4}), {10, 6, 3, 0});
  EXPECT_TENSOR(linspace(-7.5, -0.5, 3, DType::i32), ({3}), {-7, -3, 0});
}

TEST_P(CreationTest, ADeviceAloneLeavesTheDefaultDtype) {
  EXPECT_EQ(arange(0, 3, 1, device()).dtype(), DType::i64);
  EXPECT_EQ(randint(0, 3, {2}, device()).dtype(), DType::i64);
  EXPECT_EQ(randperm(3, device()).dtype(), DType::i64);
  EXPECT_EQ(linspace(0, 3, 2, device()).dtype(), DType::f32);
}

TEST_P(CreationTest, Eye) {
  EXPECT_TENSOR(eye(3), ({3, 3}), {1, 0, 0, 0, 1, 0, 0, 0, 1});
  EXPECT_TENSOR(eye(0), ({0, 0}), {});
  EXPECT_TENSOR(eye(1, DType::boolean), ({1, 1}), {1});
  EXPECT_TENSOR(eye(2, 3), ({2, 3}), {1, 0, 0, 0, 1, 0});
  EXPECT_TENSOR(eye(3, 2, DType::i64), ({3, 2}), {1, 0, 0, 1, 0, 0});
  EXPECT_TENSOR(eye(0, 2), ({0, 2}), {});
  EXPECT_WEFT_ERROR(eye(-1), Shape, "[eye] negative size -1");
  EXPECT_WEFT_ERROR(eye(2, -1), Shape, "[eye] negative size -1");
}

TEST_P(CreationTest, FromSpanTakesTheDtypeFromT) {
  EXPECT_EQ(from_vector<float>({1, 2}, {2}).dtype(), DType::f32);
  EXPECT_EQ(from_vector<double>({1, 2}, {2}).dtype(), DType::f64);
  EXPECT_EQ(from_vector<bf16>({bf16(1.f)}, {1}).dtype(), DType::bf16);
  EXPECT_EQ(from_vector<std::int64_t>({1, 2}, {2}).dtype(), DType::i64);
  EXPECT_EQ(from_vector<std::int32_t>({1, 2}, {2}).dtype(), DType::i32);
  EXPECT_EQ(from_vector<std::uint8_t>({1, 2}, {2}).dtype(), DType::u8);
  const std::array<bool, 2> truth = {true, false};
  EXPECT_TENSOR(from_span(std::span<const bool>(truth), {2}), ({2}), {1, 0});
  EXPECT_TENSOR(from_vector<float>({1, 2, 3, 4}, {2, 2}), ({2, 2}), {1, 2, 3, 4});
  // A given dtype converts the values, also f32.
  const std::vector<double> values{1.5, -2.25, 300};
  for (const DType dtype : kAllDTypes) {
    const Tensor x = from_vector(values, {3}, dtype);
    EXPECT_EQ(x.dtype(), dtype);
    EXPECT_EQ(testing::values_of(x), testing::values_of(raw::to(from_vector(values, {3}), dtype)));
  }
  EXPECT_TENSOR(from_vector(values, {3}, DType::u8), ({3}), {1, 0, 255});
  EXPECT_EQ(from_vector(values, {3}, device()).dtype(), DType::f64);
  EXPECT_EQ(from_vector(values, {3}, {DType::f32, device()}).device(), device());
  EXPECT_WEFT_ERROR(from_vector<float>({1, 2}, {3}), Shape,
                    "[from_span] got 2 values for shape [3], which holds 3");
}

TEST_P(CreationTest, FromSpanChannelsLast) {
  TensorOptions options;
  options.channels_last = true;
  const Tensor x = from_vector<float>({1, 2, 3, 4}, {1, 2, 1, 2}, options);
  EXPECT_EQ(x.strides(), (Strides{4, 1, 4, 2}));
  EXPECT_TENSOR(x, ({1, 2, 1, 2}), {1, 2, 3, 4});
}

TEST_P(CreationTest, TensorOfALine) {
  EXPECT_TENSOR(tensor({1, 2.5, -3}), ({3}), {1, 2.5, -3});
  EXPECT_EQ(tensor({1}).dtype(), DType::f32);
  EXPECT_TENSOR(tensor({1, 2.5}, DType::i64), ({2}), {1, 2});
  EXPECT_TENSOR(tensor({}), ({0}), {});
}

TEST_P(CreationTest, BadShapes) {
  EXPECT_WEFT_ERROR(zeros({2, -1}), Shape, "[zeros] negative size in shape [2,-1]");
  EXPECT_WEFT_ERROR(empty({std::int64_t{1} << 40, std::int64_t{1} << 40}), Shape,
                    "does not fit in 64 bits");
  EXPECT_WEFT_ERROR(empty({0, std::int64_t{1} << 40, std::int64_t{1} << 40}), Shape,
                    "does not fit in 64 bits");
  EXPECT_WEFT_ERROR(empty({std::int64_t{1} << 61, 3}, DType::f64), OutOfMemory, "");
  TensorOptions options;
  options.channels_last = true;
  EXPECT_WEFT_ERROR(empty({2, 3}, options), Shape, "expected four dimensions");
}

TEST(CreationOnHostTest, BorrowUsesTheMemory) {
  std::vector<float> memory = {1, 2, 3, 4, 5, 6};
  const Tensor x = borrow(std::span<float>(memory), {2, 3});
  EXPECT_EQ(x.raw_data(), memory.data());
  raw::add_(x, 1);
  EXPECT_EQ(memory[5], 7);
  memory[0] = 9;
  EXPECT_TENSOR(raw::select(x, 1, 0), ({2}), {9, 5});
  EXPECT_WEFT_ERROR(borrow(std::span<float>(memory), {7}), Shape, "[borrow] got 6 values");
}

TEST(CreationOnHostTest, BorrowWithStridesTellsWhenTheMemoryIsFree) {
  std::vector<float> memory = {1, 2, 3, 4, 5, 6};
  const std::span<float> span(memory);
  int released = 0;
  Tensor x = borrow(span, {3, 2}, {1, 3}, [&] { ++released; });
  Tensor row = raw::select(x, 0, 1);
  EXPECT_TENSOR(x, ({3, 2}), {1, 4, 2, 5, 3, 6});
  x = {};
  EXPECT_EQ(released, 0);
  EXPECT_TENSOR(row, ({2}), {2, 5});
  EXPECT_WEFT_ERROR(borrow(span, {3, 3}, {1, 3}, [&] { ++released; }), Shape, "reaches outside");
  EXPECT_EQ(released, 0);
  row = {};
  EXPECT_EQ(released, 1);
}

TEST_P(CreationTest, AsStrided) {
  const Tensor x = arange(0, 10, 1, DType::f32);
  EXPECT_TENSOR(as_strided(x.storage(), DType::f32, {2, 3}, {3, 2}, 1), ({2, 3}),
                {1, 3, 5, 4, 6, 8});
  const auto held = static_cast<std::int64_t>(x.storage()->bytes() / 4);
  EXPECT_WEFT_ERROR(as_strided(x.storage(), DType::f32, {2}, {held}), Shape,
                    "reaches outside a storage");
  EXPECT_WEFT_ERROR(as_strided(x.storage(), DType::f32, {2}, {1}, -1), Shape, "reaches outside");
  EXPECT_WEFT_ERROR(as_strided(x.storage(), DType::f32, {2, 2}, {std::int64_t{1} << 62, 1}), Shape,
                    "reaches outside");
  EXPECT_WEFT_ERROR(as_strided(x.storage(), DType::f32, {2}, {1, 1}), Shape, "differ in length");
  EXPECT_WEFT_ERROR(as_strided({}, DType::f32, {2}, {1}), InvalidArgument,
                    "[as_strided] there is no storage");
  EXPECT_WEFT_ERROR(as_strided(x.storage(), DType::f32, {2}, {-1}, 5), InvalidArgument,
                    "negative stride");
}

}  // namespace
}  // namespace weft
