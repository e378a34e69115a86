// The choice among several ways to compute a problem, for both backends.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

/// How long one call of a candidate took, in milliseconds; infinity if it failed.
struct Measured {
  std::string name;
  double ms = 0;
};

/// A problem and the candidates, the ways to compute it.
struct ChoiceProblem {
  std::string op;                   ///< "conv2d"
  std::string text;                 ///< shapes and so on, for the log
  std::string machine;              ///< the hardware and libraries that a timing holds for
  std::vector<std::int64_t> words;  ///< all that the choice depends on, also team size and flags
  /// The words, those that change with the batch and the size of the images rounded (size_class).
  /// Problems with the same share choices.
  std::vector<std::int64_t> family;
  std::vector<std::string> candidates;
  /// Called before the thread waits for its turn to time; what waits for other ranks belongs here,
  /// since these may wait for the turn.
  std::function<void()> before = {};

  /// One line: op, words, and a checksum of the candidates' names. A build with other candidates
  /// has another key, so it chooses again.
  std::string key() const;
};

/// The same for sizes between a power of two and the next: how many binary digits it has.
std::int64_t size_class(std::int64_t size);

/// What the thread's state says of choosing (deterministic, benchmark), as a word of a plan's key:
/// a choice by rule is kept beside one by timing.
std::int64_t choice_rules();

/// So many problems of a family are timed by one process. Further ones take what won most often.
inline constexpr int kTimedOfFamily = 4;

/// The candidate to take, as its place in problem.candidates: the one that thread_state().choices
/// remembers (without those, the process); else the one that its family takes, if that has been
/// timed often enough; else, with thread_state().benchmark, the fastest. If several threads or
/// processes that share their memory of choices ask at once, one of them times; the others wait.
/// It is the first that can be built if there is no other, if `why_not` gives a reason against all
/// this, if all that were timed failed, or if time() throws std::bad_alloc. Throws Internal if none
/// can be built.
///
/// time(measured) appends the times of candidates that can be built, of as many as are worth it. A
/// later one wins only if its time is below `lead` times the best one. build(i) says whether one
/// can be built (the library may have nothing good for the shapes), and keeps what it builds.
///
/// With thread_state().log_perf, logs one line: "perf: matmul SHAPES: NAME 0.0123 ms, NAME fails,
/// NAME -> NAME (WHY) in MODULE". A candidate without a time was not timed; eight of these are
/// named.
std::size_t choose(
    const ChoiceProblem& problem, std::string_view why_not,
    const std::function<void(std::vector<Measured>& measured)>& time, double lead = 1,
    const std::function<bool(std::size_t)>& build = [](std::size_t) { return true; });

}  // namespace weft
