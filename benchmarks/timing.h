// Clock and order statistics of the benchmarks.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

namespace weft::bench {

template <class F>
double time_ms(F&& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

/// Times of the first of all steps, and of a step in the fastest of several blocks of steps.
struct StepTimes {
  double first_ms = 0, ms = 0;
};

/// Times a step alone, since it may prepare what later ones use, and then up to `blocks` blocks of
/// `block` steps: once these have taken `most_ms`, no further one. finish() waits for what the
/// steps before it have started.
template <class Step, class Finish>
StepTimes time_first_and_fastest(Step&& step, Finish&& finish, int block, int blocks,
                                 double most_ms) {
  const auto time = [&](int steps) {
    return time_ms([&] {
      for (int i = 0; i < steps; ++i) step();
      finish();
    });
  };
  StepTimes times{.first_ms = time(1), .ms = time(block)};
  double spent_ms = times.ms;
  for (int i = 1; i < blocks && spent_ms < most_ms; ++i) {
    const double ms = time(block);
    times.ms = std::min(times.ms, ms);
    spent_ms += ms;
  }
  times.ms /= block;
  return times;
}

struct Quartiles {
  double low = 0, median = 0, high = 0;
};

/// Interpolates linearly between the order statistics; values must not be empty.
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

struct Interval {
  double low = 0, median = 0, high = 0;
};

/// The median, and two values between which the median of the underlying distribution lies with a
/// probability of at least 90 %: the k-th smallest and k-th largest, with the largest k such that
/// of n coins fewer than k show heads with a probability of at most 5 %. With fewer than five
/// values, the interval is all of them, with a lower probability. Values must not be empty.
inline Interval median_interval(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const double n = static_cast<double>(values.size());
  const auto coins = [n](double heads) {
    return std::exp(std::lgamma(n + 1) - std::lgamma(heads + 1) - std::lgamma(n - heads + 1) -
                    n * std::log(2.0));
  };
  std::size_t k = 0;  // values that the interval leaves out on each side
  for (double below = coins(0); below <= 0.05; below += coins(static_cast<double>(k))) ++k;
  k = k > 0 ? k - 1 : 0;
  return {values[k], quartiles(values).median, values[values.size() - 1 - k]};
}

}  // namespace weft::bench
