// The distance of two tensors' values.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "weft/tensor/tensor.h"

namespace weft::testing {

/// The largest difference of two values at one place; infinite if one of them is NaN, or both, of
/// which std::max would take no notice.
inline double largest_difference(const Tensor& a, const Tensor& b) {
  EXPECT_EQ(a.shape(), b.shape());
  const std::vector<double> x = a.to_vector<double>(), y = b.to_vector<double>();
  double largest = 0;
  for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    const double difference = x[i] == y[i] ? 0 : std::abs(x[i] - y[i]);
    largest = std::isnan(difference) ? std::numeric_limits<double>::infinity()
                                     : std::max(largest, difference);
  }
  return largest;
}

}  // namespace weft::testing
