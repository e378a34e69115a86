#include "weft/core/base/dtype.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "weft/tests/core/expect_error.h"

namespace weft {
namespace {

constexpr DType kAll[] = {DType::f32, DType::f64, DType::bf16,   DType::i64,
                          DType::i32, DType::u8,  DType::boolean};

TEST(DType, NamesRoundTrip) {
  for (DType dtype : kAll) EXPECT_EQ(parse_dtype(to_string(dtype)), dtype);
  EXPECT_STREQ(to_string(DType::boolean), "bool");
  EXPECT_WEFT_ERROR(parse_dtype("float32"), InvalidArgument,
                    "[dtype] got 'float32', expected f32, f64, bf16, i64, i32, u8 or bool");
}

TEST(DType, DispatchGivesTheTypeOfTheSameSize) {
  for (DType dtype : kAll) {
    dispatch_all(dtype, [&]<class T>() {
      EXPECT_EQ(dtype_of<T>, dtype);
      EXPECT_EQ(sizeof(T), size_of(dtype));
    });
  }
  EXPECT_EQ(dispatch_floating(DType::bf16, "exp", []<class T>() { return sizeof(T); }), 2u);
  EXPECT_WEFT_ERROR(dispatch_floating(DType::i64, "exp", []<class T>() {}), Dtype,
                    "[exp] needs a floating dtype, got i64");
}

TEST(DType, PromotionFollowsOneOrder) {
  const DType order[] = {DType::boolean, DType::u8,  DType::i32, DType::i64,
                         DType::bf16,    DType::f32, DType::f64};
  for (int i = 0; i < 7; ++i) {
    for (int j = 0; j < 7; ++j) EXPECT_EQ(promote(order[i], order[j]), order[std::max(i, j)]);
  }
}

// For i64, whose limits differ from their neighbours only beyond double's precision;
// tests/kernels/copy_test.cc tests the others.
TEST(DType, ElementCastSaturates) {
  using Limits = std::numeric_limits<std::int64_t>;
  for (const double v : {0x1p63, 1e300, std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(element_cast<std::int64_t>(v), Limits::max());
    EXPECT_EQ(element_cast<std::int64_t>(-v), Limits::min());
    EXPECT_EQ(element_cast<std::int64_t>(static_cast<float>(v)), Limits::max());
  }
  EXPECT_EQ(element_cast<std::int64_t>(0x1p63 - 0x1p10), Limits::max() - 1023);
  EXPECT_EQ(element_cast<std::int64_t>(bf16(std::nanf(""))), 0);
  EXPECT_EQ(element_cast<std::uint8_t>(std::nan("")), 0);
  EXPECT_EQ(element_cast<std::uint8_t>(std::int64_t{300}), 44);
  EXPECT_EQ(element_cast<bool>(std::nanf("")), true);
}

TEST(BFloat16, EveryValueSurvivesTheWayThroughFloat) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    bf16 value;
    value.bits = static_cast<std::uint16_t>(bits);
    const float f = static_cast<float>(value);
    if (std::isnan(f)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(bf16(f))));
    } else {
      ASSERT_EQ(bf16(f).bits, bits);
    }
  }
}

TEST(BFloat16, RoundsToNearestEven) {
  // 8 significant bits: between 256 and 512 the step is 2, so odd numbers are halfway.
  EXPECT_EQ(static_cast<float>(bf16(257.0f)), 256.0f);
  EXPECT_EQ(static_cast<float>(bf16(259.0f)), 260.0f);
  EXPECT_EQ(static_cast<float>(bf16(257.001f)), 258.0f);
  EXPECT_EQ(static_cast<float>(bf16(-259.0f)), -260.0f);
  EXPECT_TRUE(std::isinf(static_cast<float>(bf16(std::numeric_limits<float>::max()))));
  // Rounding a NaN whose payload is in the low half must not give infinity.
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(std::bit_cast<float>(0x7f800001u)))));
}

}  // namespace
}  // namespace weft
