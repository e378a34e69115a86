#include "weft/io/boxes.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <random>
#include <ranges>
#include <vector>

namespace weft::io::detail {
namespace {

using Boxes = std::vector<Box>;

// The same as first_wrong_element(), found by counting the boxes at each element.
std::optional<Shape> by_counting(const Shape& whole, const Boxes& boxes) {
  if (numel(whole) == 0) return std::nullopt;
  for (Shape at = Shape::filled(whole.size(), 0);;) {
    if (std::ranges::count_if(boxes, [&](const Box& box) { return box.has(at); }) != 1) return at;
    int d = whole.size() - 1;
    while (d >= 0 && ++at[d] == whole[d]) at[d--] = 0;
    if (d < 0) return std::nullopt;
  }
}

TEST(Boxes, TheFirstWrongElementIsThatOfACount) {
  std::mt19937 random(1);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(n));
  };
  int right = 0, wrong = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    Shape whole = Shape::filled(below(4), 0);
    for (std::int64_t& size : whole) size = 1 + below(4);
    // Cuts boxes in two several times, and then may change one of them.
    Boxes boxes = {{Shape::filled(whole.size(), 0), whole}};
    for (std::int64_t cuts = whole.empty() ? 0 : below(6); cuts > 0; --cuts) {
      const std::int64_t d = below(whole.size());
      Box& one = boxes[static_cast<std::size_t>(below(std::ssize(boxes)))];
      Box other = one;
      if (one.sizes[d] == 1) continue;
      one.sizes[d] = 1 + below(one.sizes[d] - 1);
      other.offsets[d] += one.sizes[d];
      other.sizes[d] -= one.sizes[d];
      boxes.push_back(other);
    }
    Box& one = boxes[static_cast<std::size_t>(below(std::ssize(boxes)))];
    switch (whole.empty() ? 3 : below(4)) {
      case 0: {
        const std::int64_t d = below(whole.size());
        one.offsets[d] = below(whole[d]);
        one.sizes[d] = 1 + below(whole[d] - one.offsets[d]);
        break;
      }
      case 1: boxes.push_back(one); break;
      case 2: boxes.erase(boxes.begin()); break;
      default: break;
    }
    const auto expected = by_counting(whole, boxes);
    ++(expected ? wrong : right);
    ASSERT_EQ(first_wrong_element(whole, boxes), expected) << whole << ", trial " << trial;
  }
  EXPECT_GT(right, 1000);
  EXPECT_GT(wrong, 1000);
}

TEST(Boxes, WhatHasNoElements) {
  EXPECT_EQ(first_wrong_element({0, 4}, Boxes()), std::nullopt);
  EXPECT_EQ(first_wrong_element({}, Boxes()), Shape());
  EXPECT_EQ(first_wrong_element({}, Boxes{{{}, {}}}), std::nullopt);
  EXPECT_EQ(first_wrong_element({}, Boxes{{{}, {}}, {{}, {}}}), Shape());
}

// Comparing all pairs of these would be 1.8e9 comparisons.
TEST(Boxes, EachOfManyIsReadOnce) {
  constexpr std::int64_t kEdge = 245;
  Boxes boxes;
  for (std::int64_t i = kEdge; i > 0; --i) {
    for (std::int64_t k = 0; k < kEdge; ++k) boxes.push_back({{i - 1, 2 * k}, {1, 2}});
  }
  std::int64_t reads = 0;
  const auto counted = std::views::transform(boxes, [&](const Box& box) -> const Box& {
    ++reads;
    return box;
  });
  EXPECT_EQ(first_wrong_element({kEdge, 2 * kEdge}, counted), std::nullopt);
  EXPECT_EQ(reads, kEdge * kEdge);
  boxes.back().sizes[1] = 1;
  EXPECT_EQ(first_wrong_element({kEdge, 2 * kEdge}, counted), (Shape{0, 2 * kEdge - 1}));
}

}  // namespace
}  // namespace weft::io::detail
