// There are several ways (candidates) to compute a matrix product or a convolution on the CPU. A
// fixed rule takes one, or timing finds the fastest, once per shape. It is kept as a plan.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/core/runtime/parallel.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/kernels/plan/choices.h"
#include "weft/kernels/plan/plan_cache.h"

namespace weft::cpu {

/// One way to compute a problem. make() builds the plan for the team of the calling thread. It
/// returns null if the library behind it has nothing good for the shape.
template <class P>
struct Candidate {
  std::string name;
  std::function<std::unique_ptr<P>()> make;
};

/// The team size of a plan for this amount of work. It depends only on the work, so that it is the
/// same in every run.
int team_for(double multiply_adds);

/// Names the processor, the instructions in use, and oneDNN. Choices are remembered for these.
std::string machine();

/// Some bits as one word of a key.
std::int64_t flags(std::initializer_list<bool> bits);

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

/// The candidates' plans for `args`, each built when it is asked for. Trial(args) has arguments
/// like these over memory of its own; trial(plan, workspace) runs a plan once on them.
template <class Trial, class P, class Args>
class Plans {
 public:
  Plans(std::vector<Candidate<P>> candidates, const Args& args)
      : candidates_(std::move(candidates)), plans_(candidates_.size()), args_(args) {}

  bool build(std::size_t i) {
    if (!plans_[i]) plans_[i] = candidates_[i].make();
    if (plans_[i]) plans_[i]->name = candidates_[i].name;
    return plans_[i] != nullptr;
  }

  /// Appends the times of those that can be built. The trial of one that cannot win ends early,
  /// unless all are to be `whole`. Throws std::bad_alloc.
  void time(std::vector<Measured>& measured, bool whole = false) {
    const TimingTurn turn(num_threads());
    Trial trial(args_);
    double best = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < plans_.size(); ++i) {
      if (!build(i)) continue;
      const TimingBuffer workspace(plans_[i]->workspace_bytes, DType::u8);
      const double ms = time_ms([&] { trial(*plans_[i], workspace.data()); }, best);
      measured.push_back({candidates_[i].name, ms});
      if (!whole) best = std::min(best, ms);
    }
  }

  /// text: the shapes; key: of the plan in the cache, by rule 0; family: see ChoiceProblem.
  std::unique_ptr<P> choose(const char* op, const std::string& text,
                            std::span<const std::int64_t> key, std::vector<std::int64_t> family) {
    ChoiceProblem problem{op,
                          detail::concat(text, ", team of ", num_threads()),
                          machine(),
                          {key.begin(), key.end()},
                          std::move(family),
                          {}};
    for (const auto& candidate : candidates_) problem.candidates.push_back(candidate.name);
    const std::size_t bytes = Trial::bytes(args_);
    std::string why_not;
    if (thread_state().deterministic) {
      why_not = "deterministic rule";
    } else if (bytes > kMostTimingBytes) {
      why_not = detail::concat("too big to time: ", bytes >> 20, " MiB");
    }
    return std::move(plans_[weft::choose(
        problem, why_not, [&](std::vector<Measured>& measured) { time(measured); }, kClearlyFaster,
        [&](std::size_t i) { return build(i); })]);
  }

 private:
  std::vector<Candidate<P>> candidates_;
  std::vector<std::unique_ptr<P>> plans_;
  const Args& args_;
};

}  // namespace weft::cpu
