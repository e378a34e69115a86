// Timing of candidates on the CPU.
#pragma once

#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "weft/kernels/cpu/heavy.h"

namespace weft::cpu {

/// Memory for timing. Floating dtypes are filled with small values that are neither zero nor
/// denormal, others with zeros.
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

/// Milliseconds of one call: after a warm-up, the least of 5 repetitions (of 3 if the call takes
/// more than 5 ms, of 2 above 100 ms). The least rather than the median: other processes can only
/// add time, and the choice is kept for the life of the process. Ends after the first repetition if
/// both this and the warm-up took more than 4 times `best`, since the candidate cannot win then.
double time_ms(const std::function<void()>& call, double best);

/// Permission to time with a team of this size. The constructor waits while other threads of this
/// process time on the cores that the team needs: they would slow each other down.
class TimingTurn {
 public:
  explicit TimingTurn(int team);
  ~TimingTurn();
  TimingTurn(const TimingTurn&) = delete;
  TimingTurn& operator=(const TimingTurn&) = delete;

 private:
  int cores_;
};

/// If the operands need more bytes than this, nothing is timed, and the first candidate is taken.
inline constexpr std::size_t kMostTimingBytes = std::size_t{2} << 30;

/// A later candidate wins only if its time is below this factor times the best one. So noise does
/// not overrule the preferred order.
inline constexpr double kClearlyFaster = 0.97;

/// The plan of the first candidate that can be built, or null.
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

/// short_ones: a trial that cannot win ends early. whole: none does.
enum class Trials { short_ones, whole };

/// The plan of the fastest candidate, or null if none can be built. Appends the time of each that
/// can be built to `report`. run(plan, workspace) executes a plan once on timing buffers.
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
