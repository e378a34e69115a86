#include "weft/core/base/shape.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "weft/tests/core/expect_error.h"

namespace weft {
namespace {

constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kTwo32 = std::int64_t{1} << 32;

TEST(Dims, HoldsInsertsAndErases) {
  Dims d{2, 4};
  d.insert(1, 3);
  d.insert(0, 1);
  d.push_back(5);
  EXPECT_EQ(d, (Dims{1, 2, 3, 4, 5}));
  d.erase(0);
  d.erase(3);
  EXPECT_EQ(d, (Dims{2, 3, 4}));
  EXPECT_EQ(d.back(), 4);
  EXPECT_EQ(to_string(d), "[2,3,4]");
  EXPECT_EQ(to_string(Dims{}), "[]");
  EXPECT_EQ(Dims::filled(3, 7), (Dims{7, 7, 7}));
  EXPECT_FALSE((Dims{1, 2}) == (Dims{1, 2, 0}));
}

TEST(Dims, HasRoomForEightOnly) {
  Dims d = Dims::filled(8, 2);
  EXPECT_WEFT_ERROR(d.push_back(1), Shape,
                    "[shape] cannot add a dimension to [2,2,2,2,2,2,2,2], at most 8 are possible");
  EXPECT_EQ(d, Dims::filled(8, 2));
  EXPECT_WEFT_ERROR(Dims(std::vector<std::int64_t>(9)), Shape,
                    "[shape] got 9 dimensions, at most 8 are possible");
  EXPECT_WEFT_ERROR(Dims::filled(-1, 0), Shape, "got -1 dimensions, expected 0 to 8");
  EXPECT_WEFT_ERROR(d.erase(8), Shape, "no position 8 in [2,2,2,2,2,2,2,2]");
  // Numbers that 32 bits would truncate to 0 and 1.
  EXPECT_WEFT_ERROR(Dims::filled(kTwo32, 0), Shape, "got 4294967296 dimensions");
  EXPECT_WEFT_ERROR(d.erase(kTwo32), Shape, "no position 4294967296");
  EXPECT_WEFT_ERROR((Dims{1}.insert((kTwo32) + 1, 2)), Shape, "position 4294967297 of [1]");
}

TEST(Shape, NumelIsTheProduct) {
  EXPECT_EQ(numel({}), 1);
  EXPECT_EQ(numel({2, 3, 4}), 24);
  EXPECT_EQ(numel({5, 0}), 0);
  const std::int64_t big = std::int64_t{1} << 40;
  EXPECT_EQ(numel({big, big, 0}), 0);
  EXPECT_WEFT_ERROR(numel({big, big}), Shape,
                    "the number of elements of [1099511627776,1099511627776] does not fit");
}

TEST(Shape, Strides) {
  EXPECT_EQ(contiguous_strides({2, 3, 4}), (Strides{12, 4, 1}));
  EXPECT_EQ(contiguous_strides({}), Strides{});
  EXPECT_EQ(contiguous_strides({2, 0, 4}), (Strides{4, 4, 1}));
  EXPECT_EQ(contiguous_strides({0, kMax}), (Strides{kMax, 1}));
  EXPECT_WEFT_ERROR(contiguous_strides({kTwo32, kTwo32, 0}), Shape,
                    "[shape] the number of elements of [4294967296,4294967296,0] does not fit");
  EXPECT_EQ(channels_last_strides({2, 3, 4, 5}), (Strides{60, 1, 15, 3}));
  EXPECT_WEFT_ERROR(channels_last_strides({2, 3}), Shape,
                    "[channels_last] got shape [2,3], expected four dimensions [N,C,H,W]");
}

TEST(Shape, Broadcast) {
  EXPECT_EQ(broadcast_shapes({2, 3}, {3}, "add"), (Shape{2, 3}));
  EXPECT_EQ(broadcast_shapes({3}, {2, 1}, "add"), (Shape{2, 3}));
  EXPECT_EQ(broadcast_shapes({}, {4, 1}, "add"), (Shape{4, 1}));
  EXPECT_EQ(broadcast_shapes({1}, {0}, "add"), (Shape{0}));
  EXPECT_EQ(broadcast_shapes({0, 1}, {1, 5}, "add"), (Shape{0, 5}));
  EXPECT_WEFT_ERROR(broadcast_shapes({2, 3}, {4, 3}, "add"), Shape,
                    "[add] shapes [2,3] and [4,3] do not broadcast: dimension -2 must be equal or "
                    "1 in one of them");
  EXPECT_WEFT_ERROR(broadcast_shapes({0}, {2}, "mul"), Shape, "[mul] shapes [0] and [2]");
}

TEST(Shape, NormalizeDim) {
  EXPECT_EQ(normalize_dim(0, 3, "sum"), 0);
  EXPECT_EQ(normalize_dim(-1, 3, "sum"), 2);
  EXPECT_EQ(normalize_dim(-3, 3, "sum"), 0);
  EXPECT_WEFT_ERROR(normalize_dim(3, 3, "sum"), Shape,
                    "[sum] dimension: got 3, expected -3 to 2 for 3 dimensions");
  EXPECT_WEFT_ERROR(normalize_dim(-4, 3, "sum"), Shape, "[sum] dimension: got -4");
  EXPECT_WEFT_ERROR(normalize_dim(0, 0, "sum"), Shape,
                    "[sum] dimension: got 0, a scalar has no dimensions");
  for (const std::int64_t dim : {kMin, -kTwo32, kTwo32, kMax}) {
    EXPECT_WEFT_ERROR(normalize_dim(dim, 3, "sum"), Shape,
                      "[sum] dimension: got " + std::to_string(dim) + ", expected -3 to 2");
  }
}

TEST(Shape, CheckShape) {
  check_shape({}, "empty");
  check_shape({2, 0, 3}, "empty");
  check_shape({0, kMax}, "empty");
  EXPECT_WEFT_ERROR(check_shape({2, kMin}, "empty"), Shape,
                    "[empty] negative size in shape [2,-9223372036854775808]");
  EXPECT_WEFT_ERROR(check_shape({0, kTwo32, kTwo32}, "empty"), Shape,
                    "[empty] the number of elements of [0,4294967296,4294967296] does not fit");
}

TEST(Shape, CheckedArithmetic) {
  EXPECT_EQ(checked_add(kMax - 1, 1, "pad"), kMax);
  EXPECT_EQ(checked_add(kMin, kMax, "pad"), -1);
  EXPECT_WEFT_ERROR(checked_add(kMax, 1, "pad"), Shape,
                    "[pad] 9223372036854775807 + 1 does not fit in 64 bits");
  EXPECT_WEFT_ERROR(checked_add(kMin, -1, "pad"), Shape, "-9223372036854775808 + -1");
  EXPECT_EQ(checked_mul(1LL << 31, -(kTwo32), "repeat"), kMin);
  EXPECT_WEFT_ERROR(checked_mul(1LL << 31, kTwo32, "repeat"), Shape,
                    "[repeat] 2147483648 * 4294967296 does not fit in 64 bits");
  EXPECT_EQ(ceil_div(0, 3), 0);
  EXPECT_EQ(ceil_div(6, 3), 2);
  EXPECT_EQ(ceil_div(7, 3), 3);
  EXPECT_EQ(ceil_div(kMax, kMax), 1);
  EXPECT_EQ(ceil_div(kMax, kMax - 1), 2);
}

}  // namespace
}  // namespace weft
