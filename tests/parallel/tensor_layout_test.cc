#include "weft/parallel/tensor_layout.h"

#include <gtest/gtest.h>

#include <sstream>
#include <vector>

namespace weft::parallel {
namespace {

TEST(TensorLayoutTest, TextLeadsBackToIt) {
  const std::vector<TensorLayout> layouts = {{"a scalar, 3 words", DType::f64, {}},
                                             {"", DType::u8, {0}},
                                             {"0.weight", DType::bf16, {2, 3, 4, 5}}};
  std::stringstream text;
  for (const TensorLayout& layout : layouts) text << layout;
  TensorLayout read;
  for (const TensorLayout& layout : layouts) {
    ASSERT_TRUE(text >> read);
    EXPECT_EQ(read.name, layout.name);
    EXPECT_EQ(read.dtype, layout.dtype);
    EXPECT_EQ(read.shape, layout.shape);
  }
  EXPECT_FALSE(text >> read);
}

}  // namespace
}  // namespace weft::parallel
