// Choosing among candidates by running them.
#pragma once

#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "weft/kernels/cpu/heavy.h"

namespace weft::cpu {

/// Memory for timing, filled with small values that are neither zero nor denormal.
class TimingBuffer {
 public:
  TimingBuffer() = default;
  /// Throws std::bad_alloc.
  TimingBuffer(std::size_t bytes, DType dtype);
  void* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<void, Free> data_;
};

/// Milliseconds of one call: the best of 5 repetitions (3 of a long call, 2 of a very long one)
/// after a warm-up. The best and not the median: other processes can only add time, and a choice
/// made while they run is kept for the life of the process. A trial ends early when the first
/// repetition takes several times `best`: it cannot win any more.
double time_ms(const std::function<void()>& call, double best);

/// A turn to time, waited for where other threads of this process time on the cores that a team of
/// this size needs: side by side they would measure each other.
class TimingTurn {
 public:
  explicit TimingTurn(int team);
  ~TimingTurn();
  TimingTurn(const TimingTurn&) = delete;
  TimingTurn& operator=(const TimingTurn&) = delete;

 private:
  int cores_;
};

/// Above this the buffers for timing would weigh more than the choice is worth; the fixed rule is
/// taken.
inline constexpr std::size_t kMostTimingBytes = std::size_t{2} << 30;

/// A later candidate must win by this factor: keeps noise from overruling the preferred order.
inline constexpr double kClearlyFaster = 0.97;

/// The first candidate that can be built.
template <class P>
std::unique_ptr<P> first_plan(const std::vector<Candidate<P>>& candidates) {
  for (const auto& candidate : candidates) {
    if (auto plan = candidate.make()) {
      plan->name = candidate.name;
      return plan;
    }
  }
  return nullptr;
}

/// Whether a trial that cannot win any more ends early.
enum class Trials { short_ones, whole };

/// The fastest one, and what each took (those that can be built). run(plan, workspace) executes it
/// once on timing buffers.
template <class P, class Run>
std::unique_ptr<P> fastest_plan(const std::vector<Candidate<P>>& candidates, Run&& run,
                                std::vector<Measured>& report, Trials trials) {
  std::unique_ptr<P> best;
  double best_ms = std::numeric_limits<double>::infinity();
  for (const auto& candidate : candidates) {
    auto plan = candidate.make();
    if (!plan) continue;
    plan->name = candidate.name;
    const TimingBuffer workspace(plan->workspace_bytes, DType::u8);
    const double limit =
        trials == Trials::whole ? std::numeric_limits<double>::infinity() : best_ms;
    const double ms = time_ms([&] { run(*plan, workspace.data()); }, limit);
    report.push_back({candidate.name, ms});
    if (!best || ms < best_ms * kClearlyFaster) {
      best_ms = ms;
      best = std::move(plan);
    }
  }
  return best;
}

}  // namespace weft::cpu
