// The padding of a convolution layer: numbers, or a name.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <utility>

#include "weft/nn/pair.h"

namespace weft::nn {

/// How many zeros are put at each end, a Pair for an image and one number for a sequence; or
/// "same", which is as many as keep the size, or "valid", which is none.
template <class Amount>
struct ConvPadding {
  template <std::integral T>
  ConvPadding(T zeros) : amount(std::int64_t{zeros}) {}
  ConvPadding(Pair zeros)
    requires std::same_as<Amount, Pair>
      : amount(zeros) {}
  ConvPadding(std::int64_t height, std::int64_t width)
    requires std::same_as<Amount, Pair>
      : amount(height, width) {}
  ConvPadding(const char* text) : name(text) {}
  ConvPadding(std::string text) : name(std::move(text)) {}

  Amount amount = 0;
  std::string name;  ///< empty for numbers
};

}  // namespace weft::nn
