// When a call of this room has to have ended: everything that waits takes one.
#pragma once

#include <algorithm>
#include <chrono>

namespace weft::comm {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  /// `timeout` from now.
  explicit Deadline(std::chrono::milliseconds timeout) : at_(Clock::now() + timeout) {}

  Clock::time_point at() const { return at_; }
  bool passed() const { return Clock::now() >= at_; }
  /// Rounded up, so that who sleeps that long has reached it; 0 when it has passed. At most `most`.
  std::chrono::milliseconds left(
      std::chrono::milliseconds most = std::chrono::milliseconds(1'000'000'000)) const {
    return std::clamp(std::chrono::ceil<std::chrono::milliseconds>(at_ - Clock::now()),
                      std::chrono::milliseconds(0), most);
  }

 private:
  Clock::time_point at_;
};

}  // namespace weft::comm
