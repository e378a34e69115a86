#include "weft/io/pickle_value.h"

#include <type_traits>
#include <utility>

#include "weft/tensor/creation.h"
#include "weft/tests/core/expect_error.h"

namespace weft::io {
namespace {

// What Python does not take for a number or a text is no value.
static_assert(std::is_constructible_v<PickleValue, unsigned long>);
static_assert(std::is_constructible_v<PickleValue, long long>);
static_assert(!std::is_constructible_v<PickleValue, int*>);
static_assert(!std::is_constructible_v<PickleValue, std::nullptr_t>);

TEST(PickleValue, IsMadeOfAnyInteger) {
  EXPECT_EQ(PickleValue(std::size_t{7}).integer(), 7);
  EXPECT_EQ(PickleValue(7u).integer(), 7);
  EXPECT_EQ(PickleValue(static_cast<std::uint8_t>(200)).integer(), 200);
  EXPECT_EQ(PickleValue(-7ll).integer(), -7);
  EXPECT_EQ(PickleValue(2.5f).real(), 2.5);
  EXPECT_WEFT_ERROR((void)PickleValue(~std::uint64_t{0}), InvalidArgument,
                    "18446744073709551615 does not fit 64 bits with a sign");
}

TEST(PickleValue, KeepsWhatItIsAfterAMove) {
  PickleValue text("abc"), list = PickleValue::list({1}), x(tensor({1}));
  const PickleValue::Items moved = {std::move(text), std::move(list), std::move(x)};
  EXPECT_EQ(text.text(), "abc");
  EXPECT_EQ(list.items().size(), 1u);
  EXPECT_TRUE(x.tensor().same(moved[2].tensor()));
}

TEST(PickleValue, SaysWhatItIs) {
  const PickleValue v = PickleValue::dict({{"a", 1}, {2, PickleValue::list({})}});
  EXPECT_WEFT_ERROR(v.at("b"), InvalidArgument, "no key \"b\"; there are \"a\", 2");
  EXPECT_WEFT_ERROR(v.at("a").tensor(), InvalidArgument, "type int, not tensor");
  EXPECT_WEFT_ERROR(v.at(2).entries(), InvalidArgument, "type list, not dict");
  EXPECT_WEFT_ERROR(v.items(), InvalidArgument, "type dict, not list");
  EXPECT_WEFT_ERROR((void)PickleValue{Tensor()}, InvalidArgument, "an undefined tensor");
}

}  // namespace
}  // namespace weft::io
