// The middle of measured times.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "weft/core/base/error.h"

namespace weft::simulator {

/// The median; of an even number of values the mean of the two in the middle. Throws
/// InvalidArgument without a value.
inline double median(std::vector<double> values) {
  WEFT_CHECK(!values.empty(), InvalidArgument, "simulate", "nothing was timed");
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace weft::simulator
