// The elements in which two tensors differ.
#pragma once

#include <cstdint>
#include <vector>

#include "weft/tensor/tensor.h"

namespace weft::train::proof {

/// An element of two tensors.
struct Element {
  std::vector<std::int64_t> place;
  double first = 0, second = 0;
  double ulps = 0;  ///< how many numbers of the tensors' dtype lie between them, and 1
};

struct Elements {
  std::int64_t count = 0, unlike = 0;
  std::vector<Element> shown;  ///< the one that is furthest off, then the first ones
};

/// Of two tensors of the same shape and dtype. NaN and NaN count as equal.
Elements elements(const Tensor& a, const Tensor& b);

}  // namespace weft::train::proof
