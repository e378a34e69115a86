#include <functional>
#include <limits>

#include "weft/tensor/elementwise.h"
#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/device_param.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::kAllDTypes;
using testing::reversed_layout;
using testing::values_of;
using testing::with_gaps;

constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kTwo32 = std::int64_t{1} << 32;

class ViewTest : public testing::DeviceParam {
 protected:
  // 0, 1, 2, ...
  static Tensor counted(const Shape& shape) {
    return raw::reshape(arange(0, static_cast<double>(numel(shape)), 1, DType::f32), shape);
  }
};
WEFT_FOR_EACH_DEVICE(ViewTest);

#define EXPECT_VIEW_OF(view, x) EXPECT_EQ((view).storage(), (x).storage())

TEST_P(ViewTest, ViewsAliasTheStorage) {
  const Tensor x = counted({2, 3, 4});
  const std::vector<Tensor> views = {raw::reshape(x, {4, 6}),
                                     raw::flatten(x),
                                     raw::unflatten(x, 2, {2, 2}),
                                     raw::transpose(x, 0, 2),
                                     raw::permute(x, {1, 2, 0}),
                                     raw::slice(x, 1, 0, 3, 2),
                                     raw::select(x, 0, 1),
                                     raw::narrow(x, 2, 1, 2),
                                     raw::squeeze(x),
                                     raw::squeeze(x, 0),
                                     raw::unsqueeze(x, 1),
                                     raw::expand(x, {5, 2, 3, 4}),
                                     raw::chunk(x, 2, 1)[1],
                                     raw::split(x, 2, 2)[0],
                                     raw::alias(x)};
  for (const Tensor& view : views) {
    EXPECT_VIEW_OF(view, x);
    EXPECT_FALSE(view.same(x));
  }
  raw::fill_(x, 5);
  for (const Tensor& view : views) {
    for (double v : values_of(view)) EXPECT_EQ(v, 5);
  }
}

TEST_P(ViewTest, Reshape) {
  const Tensor x = counted({2, 6});
  EXPECT_TENSOR(raw::reshape(x, {3, -1}), ({3, 4}), {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  EXPECT_EQ(raw::reshape(scalar(3), {1, 1}).shape(), (Shape{1, 1}));
  EXPECT_EQ(raw::reshape(ones({1}), {}).shape(), Shape());
  EXPECT_EQ(raw::reshape(zeros({0, 3}), {3, 0, 2}).shape(), (Shape{3, 0, 2}));
  EXPECT_EQ(raw::reshape(zeros({0, 3}), {-1, 3}).shape(), (Shape{0, 3}));
  EXPECT_WEFT_ERROR(raw::reshape(x, {5, 2}), Shape,
                    "[reshape] got [5,2] (10 elements) for [2,6] (12 elements)");
  EXPECT_WEFT_ERROR(raw::reshape(x, {5, -1}), Shape, "not a multiple of 5");
  EXPECT_WEFT_ERROR(raw::reshape(x, {-1, -1}), Shape, "more than one -1 in [-1,-1]");
  EXPECT_WEFT_ERROR(raw::reshape(x, {-2, 6}), Shape, "negative size in shape [-2,6]");
  EXPECT_WEFT_ERROR(raw::reshape(zeros({0}), {-1, 0}), Shape, "-1 is ambiguous in [-1,0]");
}

TEST_P(ViewTest, ReshapeCopiesOnlyWhenStridesForceIt) {
  const Tensor x = counted({2, 3, 4});
  const Tensor turned = raw::transpose(x, 1, 2);  // [2,4,3], strides 12,1,4
  EXPECT_VIEW_OF(raw::reshape(turned, {2, 2, 2, 3}), x);
  EXPECT_VIEW_OF(raw::reshape(turned, {1, 2, 4, 1, 3}), x);
  EXPECT_TENSOR(
      raw::reshape(turned, {2, 2, 2, 3}), ({2, 2, 2, 3}),
      {0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11, 12, 16, 20, 13, 17, 21, 14, 18, 22, 15, 19, 23});
  const Tensor copied = raw::reshape(turned, {2, 12});
  EXPECT_NE(copied.storage(), x.storage());
  EXPECT_TENSOR(copied, ({2, 12}), {0,  4,  8,  1,  5,  9,  2,  6,  10, 3,  7,  11,
                                    12, 16, 20, 13, 17, 21, 14, 18, 22, 15, 19, 23});
  const Tensor wide = raw::expand(ones({1, 4}), {3, 4});
  EXPECT_VIEW_OF(raw::reshape(wide, {3, 2, 2}), wide);
  EXPECT_NE(raw::reshape(wide, {12}).storage(), wide.storage());
  const Tensor grid = counted({4, 6});
  EXPECT_VIEW_OF(raw::reshape(raw::slice(grid, 0, 0, 4, 2), {2, 3, 2}), grid);
}

TEST_P(ViewTest, ReshapeOfEveryLayoutKeepsRowMajorOrder) {
  const Tensor x = counted({4, 6, 2});
  for (const Tensor& y :
       {x, reversed_layout(x), with_gaps(x), raw::permute(counted({2, 4, 6}), {1, 2, 0})}) {
    for (const Shape& shape : {Shape{48}, Shape{2, 24}, Shape{4, 3, 2, 2}, Shape{4, 12},
                               Shape{24, 2}, Shape{1, 4, 1, 6, 2, 1}, Shape{8, 3, 2}}) {
      EXPECT_EQ(values_of(raw::reshape(y, shape)), values_of(y));
      EXPECT_EQ(raw::reshape(y, shape).shape(), shape);
    }
  }
}

// A tensor without dimensions accepts 0 and -1 if the result has the same number of dimensions or
// more.
TEST_P(ViewTest, DimensionsOfAScalar) {
  const Tensor x = scalar(3);
  for (const int dim : {0, -1}) {
    EXPECT_TENSOR(raw::transpose(x, 0, dim), ({}), {3});
    EXPECT_TENSOR(raw::squeeze(x, dim), ({}), {3});
    EXPECT_TENSOR(raw::unsqueeze(x, dim), ({1}), {3});
    EXPECT_TENSOR(raw::flatten(x, 0, dim), ({1}), {3});
    EXPECT_WEFT_ERROR(raw::select(x, dim, 0), Shape, "[select] dimension: got");
    EXPECT_WEFT_ERROR(raw::narrow(x, dim, 0, 1), Shape, "[narrow] dimension: got");
  }
  EXPECT_TENSOR(raw::permute(x, {}), ({}), {3});
  EXPECT_WEFT_ERROR(raw::transpose(x, 0, 1), Shape, "[transpose] dimension: got 1");
  EXPECT_WEFT_ERROR(raw::squeeze(x, 1), Shape, "[squeeze] dimension: got 1");
  EXPECT_WEFT_ERROR(raw::flatten(x, 0, 1), Shape, "[flatten] dimension: got 1");
}

TEST_P(ViewTest, TooManyDimensionsAreNamed) {
  const Tensor x = ones({1, 1, 1, 1, 1, 1, 1, 1});
  EXPECT_WEFT_ERROR(raw::unsqueeze(x, 0), Shape,
                    "[unsqueeze] cannot add a dimension to [1,1,1,1,1,1,1,1], at most 8");
  EXPECT_WEFT_ERROR(raw::unflatten(x, 0, {1, 1}), Shape,
                    "[unflatten] cannot add a dimension to [1,1,1,1,1,1,1,1], at most 8");
  EXPECT_WEFT_ERROR(raw::stack(std::vector<Tensor>{x, x}), Shape,
                    "[stack] cannot add a dimension to [1,1,1,1,1,1,1,1], at most 8");
  EXPECT_WEFT_ERROR(raw::one_hot(raw::to(x, DType::i64), 2), Shape,
                    "[one_hot] cannot add a dimension to [1,1,1,1,1,1,1,1], at most 8");
}

TEST_P(ViewTest, FlattenAndUnflatten) {
  const Tensor x = counted({2, 3, 4});
  EXPECT_EQ(raw::flatten(x).shape(), Shape{24});
  EXPECT_EQ(raw::flatten(x, 1).shape(), (Shape{2, 12}));
  EXPECT_EQ(raw::flatten(x, 0, 1).shape(), (Shape{6, 4}));
  EXPECT_TRUE(raw::flatten(x, -2, -2).same(x));
  EXPECT_EQ(raw::flatten(scalar(1)).shape(), Shape{1});
  EXPECT_EQ(raw::flatten(zeros({0, 3})).shape(), Shape{0});
  EXPECT_WEFT_ERROR(raw::flatten(x, 2, 1), Shape, "[flatten] start dimension 2 comes after end");
  EXPECT_EQ(raw::unflatten(x, -1, {2, -1}).shape(), (Shape{2, 3, 2, 2}));
  EXPECT_EQ(values_of(raw::unflatten(reversed_layout(x), 2, {2, 2})), values_of(x));
  EXPECT_EQ(raw::unflatten(zeros({0, 3}), 0, {0, 5}).shape(), (Shape{0, 5, 3}));
  EXPECT_WEFT_ERROR(raw::unflatten(x, 2, {3, 2}), Shape,
                    "[unflatten] got [3,2] (6 elements) for [4]");
  EXPECT_WEFT_ERROR(raw::unflatten(x, 2, {}), Shape, "[unflatten] needs at least one size");
  const Tensor image = raw::contiguous(counted({2, 3, 2, 2}), MemoryFormat::nhwc);
  EXPECT_EQ(values_of(raw::flatten(image, 1)), values_of(counted({2, 12})));
  EXPECT_TRUE(raw::flatten(image, 1).is_contiguous());
}

TEST_P(ViewTest, TransposeAndPermute) {
  const Tensor x = counted({2, 3});
  EXPECT_TENSOR(raw::transpose(x, 0, 1), ({3, 2}), {0, 3, 1, 4, 2, 5});
  EXPECT_TENSOR(raw::transpose(x, -1, -1), ({2, 3}), {0, 1, 2, 3, 4, 5});
  EXPECT_TENSOR(raw::permute(counted({1, 2, 3}), {2, 0, 1}), ({3, 1, 2}), {0, 3, 1, 4, 2, 5});
  EXPECT_EQ(raw::permute(scalar(1), {}).shape(), Shape());
  EXPECT_WEFT_ERROR(raw::transpose(x, 0, 2), Shape, "[transpose] dimension: got 2");
  EXPECT_WEFT_ERROR(raw::permute(x, {0}), Shape, "[permute] got 1 dimensions [0] for [2,3]");
  EXPECT_WEFT_ERROR(raw::permute(x, {0, 0}), Shape, "[permute] dimension 0 appears twice in [0,0]");
  EXPECT_WEFT_ERROR(raw::permute(x, {0, -2}), Shape, "dimension 0 appears twice");
}

TEST_P(ViewTest, SliceClampsItsBounds) {
  const Tensor x = counted({5});
  EXPECT_TENSOR(raw::slice(x, 0, 1, 4), ({3}), {1, 2, 3});
  EXPECT_TENSOR(raw::slice(x, 0, -2, 100), ({2}), {3, 4});
  EXPECT_TENSOR(raw::slice(x, 0, -100, -3), ({2}), {0, 1});
  EXPECT_TENSOR(raw::slice(x, 0, 0, 5, 2), ({3}), {0, 2, 4});
  EXPECT_TENSOR(raw::slice(x, 0, 1, 5, 2), ({2}), {1, 3});
  EXPECT_TENSOR(raw::slice(x, 0, 0, 5, 100), ({1}), {0});
  EXPECT_TENSOR(raw::slice(x, 0, 3, 1), ({0}), {});
  EXPECT_WEFT_ERROR(raw::slice(x, 0, 0, 5, 0), InvalidArgument,
                    "[slice] needs a step above 0, got 0");
  EXPECT_WEFT_ERROR(raw::slice(x, 1, 0, 5), Shape, "[slice] dimension: got 1");
  EXPECT_WEFT_ERROR(raw::slice(scalar(1), 0, 0, 1), Shape, "a scalar has no dimensions");
}

TEST_P(ViewTest, SelectAndNarrow) {
  const Tensor x = counted({2, 3});
  EXPECT_TENSOR(raw::select(x, 0, 1), ({3}), {3, 4, 5});
  EXPECT_TENSOR(raw::select(x, -1, -1), ({2}), {2, 5});
  EXPECT_TENSOR(raw::select(raw::select(x, 0, 1), 0, 0), ({}), {3});
  EXPECT_WEFT_ERROR(raw::select(x, 1, 3), Shape,
                    "[select] index: got 3, dimension 1 of [2,3] has 3");
  EXPECT_WEFT_ERROR(raw::select(x, 1, -4), Shape, "[select] index: got -4");
  EXPECT_TENSOR(raw::narrow(x, 1, 1, 2), ({2, 2}), {1, 2, 4, 5});
  EXPECT_TENSOR(raw::narrow(x, 1, -1, 1), ({2, 1}), {2, 5});
  EXPECT_TENSOR(raw::narrow(x, 1, 3, 0), ({2, 0}), {});
  EXPECT_WEFT_ERROR(raw::narrow(x, 1, 2, 2), Shape,
                    "[narrow] got start 2, length 2; dimension 1 of [2,3] has 3");
  EXPECT_WEFT_ERROR(raw::narrow(x, 1, 0, -1), Shape, "[narrow]");
  EXPECT_WEFT_ERROR(raw::narrow(x, 1, 1, std::int64_t{1} << 62), Shape, "[narrow]");
}

TEST_P(ViewTest, SqueezeAndUnsqueeze) {
  const Tensor x = counted({1, 3, 1});
  EXPECT_EQ(raw::squeeze(x).shape(), Shape{3});
  EXPECT_EQ(raw::squeeze(x, 0).shape(), (Shape{3, 1}));
  EXPECT_EQ(raw::squeeze(x, 1).shape(), (Shape{1, 3, 1}));
  EXPECT_EQ(raw::squeeze(scalar(1)).shape(), Shape());
  EXPECT_EQ(raw::squeeze(scalar(1), -1).shape(), Shape());
  EXPECT_EQ(raw::unsqueeze(counted({2, 3}), 0).shape(), (Shape{1, 2, 3}));
  EXPECT_EQ(raw::unsqueeze(counted({2, 3}), -1).shape(), (Shape{2, 3, 1}));
  EXPECT_TRUE(raw::unsqueeze(counted({2, 3}), 1).is_contiguous());
  EXPECT_EQ(raw::unsqueeze(scalar(1), 0).shape(), Shape{1});
  EXPECT_WEFT_ERROR(raw::unsqueeze(x, 4), Shape, "[unsqueeze] dimension: got 4");
  EXPECT_WEFT_ERROR(raw::unsqueeze(zeros({1, 1, 1, 1, 1, 1, 1, 1}), 0), Shape, "at most 8");
}

TEST_P(ViewTest, Expand) {
  const Tensor x = counted({2, 1});
  EXPECT_TENSOR(raw::expand(x, {2, 3}), ({2, 3}), {0, 0, 0, 1, 1, 1});
  EXPECT_TENSOR(raw::expand(x, {2, -1, 2}), ({2, 2, 2}), {0, 0, 1, 1, 0, 0, 1, 1});
  EXPECT_EQ(raw::expand(scalar(1), {0, 2}).numel(), 0);
  EXPECT_EQ(raw::expand(x, {2, 0}).shape(), (Shape{2, 0}));
  EXPECT_WEFT_ERROR(raw::expand(x, {3, 1}), Shape,
                    "[expand] cannot expand [2,1] to [3,1] at dimension 0");
  EXPECT_WEFT_ERROR(raw::expand(x, {-1, 2, 1}), Shape, "[expand] cannot expand");
  EXPECT_WEFT_ERROR(raw::expand(x, {2}), Shape, "fewer dimensions");
  const std::int64_t huge = std::int64_t{1} << 40;
  EXPECT_WEFT_ERROR(raw::expand(ones({1, 1}), {huge, huge}), Shape, "does not fit in 64 bits");
  EXPECT_WEFT_ERROR(raw::reshape(ones({0}), {0, huge, huge}), Shape, "does not fit in 64 bits");
}

TEST_P(ViewTest, ChunkAsPyTorch) {
  const auto sizes = [](const std::vector<Tensor>& parts) {
    std::vector<std::int64_t> n;
    for (const Tensor& part : parts) n.push_back(part.shape(0));
    return n;
  };
  using Sizes = std::vector<std::int64_t>;
  EXPECT_EQ(sizes(raw::chunk(counted({5}), 4)), (Sizes{2, 2, 1}));
  EXPECT_EQ(sizes(raw::chunk(counted({32}), 3)), (Sizes{11, 11, 10}));
  EXPECT_EQ(sizes(raw::chunk(counted({2}), 5)), (Sizes{1, 1}));
  EXPECT_EQ(sizes(raw::chunk(zeros({0}), 3)), (Sizes{0, 0, 0}));
  EXPECT_TENSOR(raw::chunk(counted({2, 4}), 2, 1)[1], ({2, 2}), {2, 3, 6, 7});
  EXPECT_EQ(sizes(raw::split(counted({5}), 2)), (Sizes{2, 2, 1}));
  EXPECT_EQ(sizes(raw::split(zeros({0}), 2)), (Sizes{0}));
  EXPECT_EQ(sizes(raw::split(counted({5}), Dims{1, 0, 4}, 0)), (Sizes{1, 0, 4}));
  EXPECT_TENSOR(raw::split(counted({5}), Dims{1, 0, 4}, 0)[2], ({4}), {1, 2, 3, 4});
  EXPECT_WEFT_ERROR(raw::chunk(counted({5}), 0), InvalidArgument, "[chunk] needs a count above 0");
  EXPECT_WEFT_ERROR(raw::split(counted({5}), 0), InvalidArgument, "[split] needs a size above 0");
  EXPECT_WEFT_ERROR(raw::split(counted({5}), Dims{2, 2}, 0), Shape,
                    "[split] sizes [2,2] add up to 4, dimension 0 of [5] has 5");
  EXPECT_WEFT_ERROR(raw::split(counted({5}), Dims{-1, 6}, 0), Shape, "negative size");
}

TEST_P(ViewTest, SizesThatDoNotFitIn64Bits) {
  const Tensor x = counted({10});
  // Modulo 2^64 their sum is 10.
  EXPECT_WEFT_ERROR(raw::split(x, Dims{kMax, kMax, 12}, 0), Shape,
                    "[split] 9223372036854775807 + 9223372036854775807 does not fit in 64 bits");
  EXPECT_EQ(raw::split(x, kMax).size(), 1u);
  EXPECT_EQ(raw::chunk(x, kMax).size(), 10u);
  EXPECT_WEFT_ERROR(raw::chunk(zeros({0}), kTwo32), InvalidArgument,
                    "[chunk] would give 4294967296 pieces, at most 16777216 are possible");
  EXPECT_WEFT_ERROR(raw::split(raw::expand(ones({1}), {kMax}), 1), InvalidArgument,
                    "[split] would give 9223372036854775807 pieces");
  const Tensor first = raw::slice(counted({2, 10}), 1, 3, kMax, kMax);
  EXPECT_TENSOR(first, ({2, 1}), {3, 13});
  EXPECT_EQ(first.strides(), (Strides{10, 10}));
  EXPECT_WEFT_ERROR(raw::select(x, 0, kMin), Shape, "[select] index: got -9223372036854775808");
  EXPECT_WEFT_ERROR(raw::narrow(x, 0, kMin, kMax), Shape, "[narrow] got start -92233720");
  EXPECT_WEFT_ERROR(raw::reshape(x, {kMin, -1}), Shape, "[reshape] negative size");
  EXPECT_WEFT_ERROR(raw::expand(x, {kMax, 10}), Shape, "[expand] the number of elements");
}

TEST_P(ViewTest, OfNothingButLargeSizes) {
  // Offsets and strides of a tensor without elements may not even fit in 64 bits.
  const Tensor wide = zeros({0, kMax}), tall = zeros({kMax, 0});
  for (const Tensor& view :
       {raw::select(wide, 1, kMax - 1), raw::narrow(wide, 1, kMax, 0), raw::slice(wide, 1, 5, kMax),
        raw::select(tall, 0, -1), raw::select(raw::transpose(wide, 0, 1), 0, kMax - 1),
        raw::slice(raw::unsqueeze(wide, 0), 2, kMax - 1, kMax, kMax), raw::flatten(wide),
        raw::reshape(wide, {kMax, 0})}) {
    EXPECT_EQ(view.numel(), 0);
    EXPECT_LE(view.offset(), 5);
    view.raw_data();
  }
  EXPECT_EQ(raw::unflatten(zeros({0, 3}), 0, {0, 7}).shape(), (Shape{0, 7, 3}));
  EXPECT_WEFT_ERROR(raw::unflatten(tall, 1, {0, kMax}), Shape, "[unflatten]");
  EXPECT_WEFT_ERROR(raw::cat(std::vector{wide, wide}, 1), Shape,
                    "[cat] 9223372036854775807 + 9223372036854775807 does not fit in 64 bits");
  EXPECT_WEFT_ERROR(raw::add(zeros({kTwo32, 1, 0}), raw::expand(ones({1}), {1, kTwo32, 1})), Shape,
                    "the number of elements of [4294967296,4294967296,0] does not fit in 64 bits");
  const Tensor none = zeros({0});
  EXPECT_WEFT_ERROR(as_strided(none.storage(), DType::f32, {0, 4}, {kTwo32, kMax / 2}), Shape,
                    "[as_strided] 4 * 4611686018427387903 does not fit in 64 bits");
}

TEST_P(ViewTest, DimensionsBeyond32BitsAreRefused) {
  const Tensor x = counted({2, 3});
  const std::function<void(std::int64_t)> calls[] = {
      [&](std::int64_t dim) { static_cast<void>(x.shape(dim)); },
      [&](std::int64_t dim) { raw::flatten(x, dim); },
      [&](std::int64_t dim) { raw::flatten(x, 0, dim); },
      [&](std::int64_t dim) { raw::unflatten(x, dim, {2, 1}); },
      [&](std::int64_t dim) { raw::transpose(x, dim, 1); },
      [&](std::int64_t dim) { raw::transpose(x, 1, dim); },
      [&](std::int64_t dim) { raw::permute(x, {dim, 1}); },
      [&](std::int64_t dim) { raw::slice(x, dim, 0, 1); },
      [&](std::int64_t dim) { raw::select(x, dim, 0); },
      [&](std::int64_t dim) { raw::narrow(x, dim, 0, 1); },
      [&](std::int64_t dim) { raw::squeeze(x, dim); },
      [&](std::int64_t dim) { raw::unsqueeze(x, dim); },
      [&](std::int64_t dim) { raw::chunk(x, 2, dim); },
      [&](std::int64_t dim) { raw::split(x, 1, dim); },
      [&](std::int64_t dim) { raw::split(x, Dims{1, 1}, dim); },
      [&](std::int64_t dim) { raw::cat(std::vector{x, x}, dim); },
      [&](std::int64_t dim) { raw::stack(std::vector{x, x}, dim); },
  };
  for (const auto& call : calls) {
    for (const std::int64_t dim : {kMin, -kTwo32, kTwo32, kMax}) {
      EXPECT_WEFT_ERROR(call(dim), Shape, "dimension: got " + std::to_string(dim));
    }
  }
}

TEST_P(ViewTest, OfEveryDtype) {
  for (DType dtype : kAllDTypes) {
    const Tensor x = testing::make({0, 1, 1, 0}, {2, 2}, dtype);
    EXPECT_TENSOR(raw::select(raw::transpose(x, 0, 1), 0, 1), ({2}), {1, 0});
    EXPECT_EQ(raw::flatten(x).dtype(), dtype);
  }
}

}  // namespace
}  // namespace weft
