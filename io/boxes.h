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

/// Of the elements that not exactly one of the boxes has, the first in row-major order. The boxes,
/// a range, lie inside. Reads each once: with n of them it takes n log n steps.
template <class Boxes>
std::optional<Shape> first_wrong_element(const Shape& whole, const Boxes& boxes) {
  // How many boxes have an element, less the one that should, is the sum of what stands at the
  // corners before or at it in each dimension: for a box 1 where it begins, -1 where it ends along
  // one dimension, 1 along two, and so on. All corners before come before in row-major order, too.
  // So the first one at which something is left is the first wrong element.
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
