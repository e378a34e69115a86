// A pair of numbers for an image's height and width.
#pragma once

#include <array>
#include <cstdint>

#include "weft/core/base/compiler.h"

namespace weft::nn {

/// (height, width); one number stands for both.
struct Pair {
  std::int64_t h = 0, w = 0;
  Pair(std::int64_t both) : h(both), w(both) {}
  Pair(int both) : h(both), w(both) {}
  Pair(std::int64_t height, std::int64_t width) : h(height), w(width) {}
  operator std::array<std::int64_t, 2>() const { return {h, w}; }
  friend bool operator==(const Pair&, const Pair&) = default;
};

}  // namespace weft::nn
