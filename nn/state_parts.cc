#include "weft/nn/state_parts.h"

#include <algorithm>
#include <cstdint>
#include <optional>

namespace weft::nn {
namespace {

// The boxes of a cut, as if there were no cut before it.
std::vector<Box> boxes_of_one(const Cut& cut) {
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

// What `outer`, a box of a part, contains of `inner`, a box in that part.
std::optional<Box> within(const Box& outer, const Box& inner) {
  Box both = inner;
  for (int d = 0; d < std::ssize(inner.sizes); ++d) {
    const std::int64_t begin = std::max(outer.part_offsets[d], inner.whole_offsets[d]);
    const std::int64_t end =
        std::min(outer.part_offsets[d] + outer.sizes[d], inner.whole_offsets[d] + inner.sizes[d]);
    if (end < begin) return std::nullopt;
    both.sizes[d] = end - begin;
    both.part_offsets[d] += begin - inner.whole_offsets[d];
    both.whole_offsets[d] = outer.whole_offsets[d] + begin - outer.part_offsets[d];
  }
  return both;
}

}  // namespace

std::vector<Box> boxes_of(const Cut& cut) {
  std::vector<Box> own = boxes_of_one(cut);
  if (!cut.of) return own;
  std::vector<Box> boxes;
  for (const Box& outer : boxes_of(*cut.of)) {
    for (const Box& inner : own) {
      if (const auto box = within(outer, inner)) boxes.push_back(*box);
    }
  }
  return boxes;
}

}  // namespace weft::nn
