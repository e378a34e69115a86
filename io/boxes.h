// Boxes of tensors: in which bytes of a tensor they lie, and whether several fill it.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "weft/core/base/shape.h"

namespace weft::io::detail {

struct Box {
  Shape offsets, sizes;

  bool has(const Shape& element) const {
    for (int d = 0; d < sizes.size(); ++d) {
      if (element[d] < offsets[d] || element[d] - offsets[d] >= sizes[d]) return false;
    }
    return true;
  }
  friend bool operator<(const Box& a, const Box& b) {
    return a.offsets == b.offsets ? std::ranges::lexicographical_compare(a.sizes, b.sizes)
                                  : std::ranges::lexicographical_compare(a.offsets, b.offsets);
  }
};

inline bool inside(const Shape& whole, const Shape& offsets, const Shape& sizes) {
  if (offsets.size() != whole.size() || sizes.size() != whole.size()) return false;
  for (int d = 0; d < whole.size(); ++d) {
    if (offsets[d] < 0 || sizes[d] > whole[d] || offsets[d] > whole[d] - sizes[d]) return false;
  }
  return true;
}

/// Calls f(byte of the whole, byte of the box, bytes) for each range of bytes that a box has, in
/// order. Both are row-major.
template <class F>
void each_range(const Shape& whole, const Shape& offsets, const Shape& box, std::uint64_t element,
                const F& f) {
  if (numel(box) == 0) return;
  int outer = whole.size();  // dimensions before those that one range spans
  std::uint64_t bytes = element;
  while (outer > 0) {
    --outer;
    bytes *= static_cast<std::uint64_t>(box[outer]);
    if (box[outer] != whole[outer]) break;
  }
  Shape at = Shape::filled(outer, 0);
  for (std::uint64_t done = 0;; done += bytes) {
    std::uint64_t first = 0;
    for (int d = 0; d < whole.size(); ++d) {
      first = first * static_cast<std::uint64_t>(whole[d]) +
              static_cast<std::uint64_t>(offsets[d] + (d < outer ? at[d] : 0));
    }
    f(first * element, done, bytes);
    int d = outer - 1;
    while (d >= 0 && ++at[d] == box[d]) at[d--] = 0;
    if (d < 0) return;
  }
}

/// The first element, in row-major order, that is in no box or in more than one. The boxes, a
/// range, must lie inside `whole`. Takes n log n steps for n boxes, and reads each once.
template <class Boxes>
std::optional<Shape> first_wrong_element(const Shape& whole, const Boxes& boxes) {
  // Each box puts numbers at its corners: 1 where it begins, -1 where it ends along one dimension,
  // 1 along two, and so on; `whole` puts the opposite. The numbers at and before an element (in
  // each dimension) add up to how many boxes have it, minus 1. They come before it in row-major
  // order, too: so the first corner where something is left is the first wrong element.
  std::map<std::vector<std::int64_t>, std::int64_t> left;
  const auto add = [&](const Shape& offsets, const Shape& sizes, std::int64_t count) {
    for (std::uint32_t ends = 0; ends < std::uint32_t{1} << whole.size(); ++ends) {
      std::vector<std::int64_t> corner(offsets.begin(), offsets.end());
      for (int d = 0; d < whole.size(); ++d) {
        if (ends >> d & 1) corner[static_cast<std::size_t>(d)] += sizes[d];
      }
      left[corner] += std::popcount(ends) % 2 == 0 ? count : -count;
    }
  };
  add(Shape::filled(whole.size(), 0), whole, -1);
  for (const Box& box : boxes) add(box.offsets, box.sizes, 1);
  const auto wrong = std::ranges::find_if(left, [](const auto& at) { return at.second != 0; });
  if (wrong == left.end()) return std::nullopt;
  return Shape(std::span<const std::int64_t>(wrong->first));
}

}  // namespace weft::io::detail
