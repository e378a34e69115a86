// Clocks for measuring.
#pragma once

#include <chrono>
#include <ctime>

namespace weft::simulator {

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

template <class F>
double seconds_of(const F& f) {
  const Stopwatch watch;
  f();
  return watch.seconds();
}

/// Seconds that the calling thread computes in f(): time that other processes take from its core
/// does not count. For work of one thread that does not wait for others.
template <class F>
double computing_seconds_of(const F& f) {
  const auto now = [] {
    std::timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double begin = now();
  f();
  return now() - begin;
}

}  // namespace weft::simulator
