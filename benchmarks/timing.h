// Clock and order statistics of the benchmarks.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace weft::bench {

template <class F>
double time_ms(F&& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

struct Quartiles {
  double low = 0, median = 0, high = 0;
};

/// Linear interpolation between the order statistics; values must not be empty.
inline Quartiles quartiles(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double q) {
    const double position = q * static_cast<double>(values.size() - 1);
    const auto below = static_cast<std::size_t>(position);
    const std::size_t above = std::min(below + 1, values.size() - 1);
    return values[below] +
           (position - static_cast<double>(below)) * (values[above] - values[below]);
  };
  return {at(0.25), at(0.5), at(0.75)};
}

}  // namespace weft::bench
