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

/// The elements in which two tensors of the same shape and dtype differ. NaN and NaN count as
/// equal.
Elements elements(const Tensor& a, const Tensor& b);

/// How far two sums of tensors are apart. `magnitudes`: the sums of their addends' magnitudes.
struct SumsApart {
  double times = 0;  ///< the largest difference of two elements, by the magnitude at their place
  double l2 = 0;     ///< of all differences
  double norm = 0;   ///< the L2 norm of the magnitudes
};

/// Differences below the smallest normal f32 do not count: numbers there may be flushed to zero.
SumsApart sums_apart(const Tensor& a, const Tensor& b, const Tensor& magnitudes);

}  // namespace weft::train::proof
