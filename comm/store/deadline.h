// The time by which a call of comm/ must end: every function that waits takes one.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

#include "weft/core/base/compiler.h"

namespace weft::comm {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  /// `timeout` from now. 31 years or more mean no limit: now + milliseconds::max() would overflow
  /// the clock.
  explicit Deadline(std::chrono::milliseconds timeout)
      : at_(Clock::now() + within(timeout, std::chrono::milliseconds(1'000'000'000'000))) {}
  /// With a check: passed() also calls `check`, which may throw to end a wait that is in vain, and
  /// left() is at most kCheckEvery so that this happens often enough.
  Deadline(std::chrono::milliseconds timeout, std::function<void()> check) : Deadline(timeout) {
    check_ = std::move(check);
  }
  /// Copies the present time: later changes of `other` do not count.
  Deadline(const Deadline& other) : at_(other.at()), check_(other.check_) {}
  Deadline& operator=(const Deadline& other) {
    move_to(other.at());
    check_ = other.check_;
    return *this;
  }
  /// Like this one, but at most `most` from now.
  Deadline at_most(std::chrono::milliseconds most) const {
    Deadline sooner = *this;
    if (const Clock::time_point then = Clock::now() + most; then < at()) sooner.move_to(then);
    return sooner;
  }

  static constexpr std::chrono::milliseconds kCheckEvery{200};

  /// From any thread. A waiting thread notices it when it reads the deadline the next time.
  void move_to(Clock::time_point at) { at_.store(at, std::memory_order_relaxed); }

  Clock::time_point at() const { return at_.load(std::memory_order_relaxed); }
  bool passed() const {
    if (check_) check_();
    return Clock::now() >= at();
  }
  /// Rounded up, so that sleeping that long reaches it; 0 when it has passed. At most `most`.
  std::chrono::milliseconds left(
      std::chrono::milliseconds most = std::chrono::milliseconds(1'000'000'000)) const {
    if (check_) most = within(most, kCheckEvery);
    return within(std::chrono::ceil<std::chrono::milliseconds>(at() - Clock::now()), most);
  }

 private:
  // From 0 to `most`.
  static std::chrono::milliseconds within(std::chrono::milliseconds time,
                                          std::chrono::milliseconds most) {
    if (time < std::chrono::milliseconds(0)) return std::chrono::milliseconds(0);
    return time < most ? time : most;
  }

  std::atomic<Clock::time_point> at_;
  std::function<void()> check_;
};

/// For messages: the time since `start`, rounded to a tenth of a second.
inline double seconds_since(Deadline::Clock::time_point start) {
  const std::chrono::duration<double> passed = Deadline::Clock::now() - start;
  return static_cast<double>(static_cast<std::int64_t>(10 * passed.count() + 0.5)) / 10;
}

}  // namespace weft::comm
