#include "weft/nn/state_parts.h"

#include <cstdint>

namespace weft::nn {

std::vector<Box> boxes_of(const Cut& cut) {
  const Shape start = Shape::filled(cut.whole.size(), 0);
  if (cut.dim < 0) return {{start, start, cut.whole}};
  std::vector<Box> boxes;
  const auto [first, count] = cut.rows_of(cut.rank);
  for (std::int64_t b = 0; b < cut.blocks; ++b) {
    Box& box = boxes.emplace_back(start, start, cut.whole);
    box.whole_offsets[cut.dim] = b * (cut.whole[cut.dim] / cut.blocks) + first;
    box.part_offsets[cut.dim] = b * count;
    box.sizes[cut.dim] = count;
  }
  return boxes;
}

}  // namespace weft::nn
