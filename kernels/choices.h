// What the backends share in choosing among candidates: remembering, and telling the log.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

/// How long one call of a candidate took; infinity where it did not work.
struct Measured {
  std::string name;
  double ms = 0;
};

/// One problem, and the ways to compute it.
struct ChoiceProblem {
  std::string op;                   ///< "conv2d"
  std::string text;                 ///< shapes and the like, for people
  std::string machine;              ///< the hardware and the libraries that were timed
  std::vector<std::int64_t> words;  ///< all that decides, the team size or the math mode too
  std::vector<std::string> candidates;

  /// One line: op, words, and a sum over the candidates' names, so that a build with another list
  /// chooses anew.
  std::string key() const;
};

/// What thread_state().choices remembers; nothing when it remembers nothing, or a name that is not
/// among the candidates.
std::optional<Measured> remembered_choice(const ChoiceProblem& problem);
/// After timing. A winner that took no finite time is not kept.
void remember_choice(const ChoiceProblem& problem, const Measured& winner);

/// Has the problem's choice made: by take(), which may refuse, from what is remembered; else by
/// time(), which is to remember what it finds. Of several threads and processes that ask at a time,
/// and share what is remembered, one times, and the others wait for it.
void recall_or_time(const ChoiceProblem& problem, const std::function<bool(const Measured&)>& take,
                    const std::function<void()>& time);

/// With thread_state().log_perf, one line: "perf: matmul SHAPES: NAME 0.0123 ms, NAME 0.0456 ms,
/// NAME -> NAME (WHY) in MODULE". A candidate without a time was not timed: nothing was, or the
/// library does not offer it for the shapes.
void log_choice(const ChoiceProblem& problem, std::string_view winner, std::string_view why,
                std::span<const Measured> measured = {});

}  // namespace weft
