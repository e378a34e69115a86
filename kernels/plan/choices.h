// The choice among several ways to compute a problem: how both backends remember and log it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
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

/// The choice that thread_state().choices remembers, without those the process. Nothing if there is
/// none, or if its name is not among the candidates.
std::optional<Measured> remembered_choice(const ChoiceProblem& problem);
/// To be called after timing. A winner without a finite time is not kept.
void remember_choice(const ChoiceProblem& problem, const Measured& winner);

/// Finds a choice for a problem that has no plan. Calls take(choice, why) if a choice is
/// remembered, and if the problem's family has been timed often enough. If there is none, or take()
/// returns false, and thread_state().benchmark is set, it calls time(), which must time the
/// candidates and call remember_choice(). If several threads or processes that share their memory
/// of choices ask at once, one of them times; the others wait. Where neither is done, a fixed rule
/// has to choose.
void recall_or_time(const ChoiceProblem& problem,
                    const std::function<bool(const Measured&, std::string_view why)>& take,
                    const std::function<void()>& time);

/// With thread_state().log_perf, logs one line: "perf: matmul SHAPES: NAME 0.0123 ms, NAME fails,
/// NAME -> NAME (WHY) in MODULE". A candidate without a time was not timed: either none was, or the
/// library does not offer it for these shapes.
void log_choice(const ChoiceProblem& problem, std::string_view winner, std::string_view why,
                std::span<const Measured> measured = {});

}  // namespace weft
