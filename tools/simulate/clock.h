// The clock of the measuring.
#pragma once

#include <chrono>

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

}  // namespace weft::simulator
