#include "weft/nn/state_parts.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::nn {
namespace {

Tensor box_of(Tensor x, const Shape& offsets, const Shape& sizes) {
  for (int d = 0; d < x.dim(); ++d) x = raw::narrow(x, d, offsets[d], sizes[d]);
  return x;
}

// The boxes of a part cover it, and are where part_of() takes its elements from.
void expect_boxes(const Cut& cut) {
  const Shape& shape = cut.parameter_shape();
  const Tensor whole = arange(0, static_cast<double>(numel(shape))).reshape(shape);
  const Tensor part = raw::contiguous(cut.part_of(whole));
  ASSERT_EQ(part.shape(), cut.part_shape());
  std::int64_t elements = 0;
  for (const Box& box : boxes_of(cut)) {
    elements += numel(box.sizes);
    EXPECT_EQ(box_of(part, box.part_offsets, box.sizes).to_vector<float>(),
              box_of(whole, box.whole_offsets, box.sizes).to_vector<float>());
  }
  EXPECT_EQ(elements, part.numel());
}

TEST(BoxesOf, AreThePart) {
  for (const int size : {1, 2, 3, 4}) {
    for (int rank = 0; rank < size; ++rank) {
      for (const std::int64_t blocks : {1, 3}) {
        for (const int dim : {-1, 0, 1}) {
          SCOPED_TRACE(::testing::Message() << rank << '/' << size << ' ' << blocks << ' ' << dim);
          const Cut by_layer{
              .whole = {6, 9}, .dim = dim, .blocks = blocks, .rank = rank, .size = size};
          expect_boxes(by_layer);
          // A cut by rows of what another cut has left, as fully_shard cuts parallelize's parts.
          for (int row = 0; row < 3; ++row) {
            expect_boxes({.whole = by_layer.part_shape(),
                          .dim = 0,
                          .rank = row,
                          .size = 3,
                          .of = std::make_shared<const Cut>(by_layer)});
          }
        }
      }
    }
  }
  EXPECT_EQ(boxes_of({.whole = {0, 4}, .dim = 0, .size = 2}).size(), 1U);  // a name and a shape
}

}  // namespace
}  // namespace weft::nn
