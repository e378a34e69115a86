#include "weft/kernels/plan/choices.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <span>

#include "weft/core/base/error.h"
#include "weft/core/runtime/log.h"
#include "weft/core/runtime/phase.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/trace/trace.h"
#include "weft/kernels/plan/choice_cache.h"

namespace weft {
namespace {

// So many candidates without a time are named; cuDNN may have a hundred.
constexpr std::size_t kMostUntimed = 8;

std::string to_text(double ms) {
  if (!std::isfinite(ms)) return "fails";
  char text[32];
  std::snprintf(text, sizeof text, "%.4g ms", ms);
  return text;
}

// The thread's cache, else one for all threads without.
ChoiceCache& memory() {
  static auto& of_process = *new ChoiceCache("");  // a detached thread may outlive statics
  ChoiceCache* const own = thread_state().choices;
  return own ? *own : of_process;
}

std::string joined(const std::vector<std::int64_t>& words) {
  std::string text;
  for (const std::int64_t word : words) text += std::to_string(word) + ',';
  return text;
}

class Families {
 public:
  void add(const ChoiceProblem& problem, const std::string& winner) {
    const std::lock_guard lock(mutex_);
    std::map<std::string, std::string>& found = found_[name_of(problem)];
    if (found.size() < kTimedOfFamily) found[joined(problem.words)] = winner;
  }
  // Empty if too few are known.
  std::string winner(const ChoiceProblem& problem) const {
    const std::lock_guard lock(mutex_);
    const auto family = found_.find(name_of(problem));
    if (family == found_.end() || family->second.size() < kTimedOfFamily) return {};
    std::map<std::string, int> votes;
    for (const auto& [words, name] : family->second) ++votes[name];
    const auto fewer = [](const auto& a, const auto& b) { return a.second < b.second; };
    return std::max_element(votes.begin(), votes.end(), fewer)->first;
  }

 private:
  static std::string name_of(const ChoiceProblem& problem) {
    return problem.op + ' ' + joined(problem.family) + ' ' + problem.machine;
  }

  mutable std::mutex mutex_;
  // By family and by the words of the problem: who won.
  std::map<std::string, std::map<std::string, std::string>> found_;
};

Families& families() {
  static auto& all = *new Families;
  return all;
}

void log_choice(const ChoiceProblem& problem, std::string_view winner, std::string_view why,
                std::span<const Measured> measured) {
  const ThreadState& state = thread_state();
  if (!state.log_perf || !state.log) return;
  std::string told;
  std::size_t untimed = 0;
  for (const std::string& name : problem.candidates) {
    const auto is_it = [&](const Measured& m) { return m.name == name; };
    const auto found = std::find_if(measured.begin(), measured.end(), is_it);
    if (found == measured.end() && ++untimed > kMostUntimed) continue;
    told += (told.empty() ? "" : ", ") + name;
    if (found != measured.end()) told += ' ' + to_text(found->ms);
  }
  if (untimed > kMostUntimed) told += detail::concat(", ", untimed - kMostUntimed, " more");
  const std::string module = module_path();
  log_info(detail::concat("perf: ", problem.op, " ", problem.text, ": ", told, " -> ", winner, " (",
                          why, ")", module.empty() ? "" : " in ", module));
}

}  // namespace

std::string ChoiceProblem::key() const {
  std::string names;
  for (const std::string& name : candidates) names += name + ' ';
  return op + ' ' + joined(words) + checksum(names);
}

std::int64_t size_class(std::int64_t size) {
  return std::bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(size, 0)));
}

std::int64_t choice_rules() {
  const ThreadState& state = thread_state();
  return std::int64_t{state.deterministic} | std::int64_t{state.benchmark} << 1;
}

std::size_t choose(const ChoiceProblem& problem, std::string_view why_not,
                   const std::function<void(std::vector<Measured>&)>& time, double lead,
                   const std::function<bool(std::size_t)>& build) {
  const ThreadState& state = thread_state();
  const std::vector<std::string>& names = problem.candidates;
  std::string_view why = "rule";
  std::vector<Measured> measured;
  std::size_t chosen = names.size();  // none yet
  const auto take = [&](const Measured& winner, std::string_view reason) {
    const auto at = std::size_t(std::find(names.begin(), names.end(), winner.name) - names.begin());
    if (at == names.size() || !build(at)) return false;
    if (winner.ms > 0) measured = {winner};
    why = reason;
    chosen = at;
    return true;
  };
  const auto recall = [&] {
    const std::optional<Choice> found = memory().find(problem.machine, problem.key());
    if (!found || !take({found->name, found->ms}, "remembered")) return false;
    families().add(problem, found->name);
    return true;
  };
  const auto recall_or_time = [&] {
    // Other ranks may wait for this one, or both for the one whose turn it is.
    const BusyScope busy("kernel timing");
    const Span span("choice", "kernel timing");
    if (problem.before) problem.before();
    const ChoiceCache::Turn turn(state.choices, problem.machine);
    if (recall()) return;
    why = "timed";
    try {
      time(measured);
    } catch (const std::bad_alloc&) {
      // The fixed rule needs no room to try things out.
      why = "no memory to time it";
      return;
    }
    const Measured* best = nullptr;
    for (const Measured& m : measured) {
      if (!best || m.ms < best->ms * lead) best = &m;
    }
    if (!best || !std::isfinite(best->ms)) {
      why = best ? "all failed" : "not timed: the device was busy";
      return;
    }
    chosen = std::size_t(std::find(names.begin(), names.end(), best->name) - names.begin());
    // To the nanosecond: the rest is noise, and people read the file.
    memory().add(problem.machine, {problem.key(), best->name, std::round(best->ms * 1e6) / 1e6});
    families().add(problem, best->name);
  };
  if (names.size() <= 1) {
    why = "only candidate";
  } else if (!why_not.empty()) {
    why = why_not;
  } else if (state.benchmark || state.choices) {
    // Without a cache of the program's a choice is remembered for those who ask for timing.
    if (!recall() && state.benchmark && !take({families().winner(problem), 0}, "as similar shapes"))
      recall_or_time();
  }
  if (chosen == names.size()) {
    for (chosen = 0; chosen < names.size() && !build(chosen);) ++chosen;
  }
  WEFT_CHECK(chosen < names.size(), Internal, problem.op, "no kernel takes these shapes");
  log_choice(problem, names[chosen], why, measured);
  return chosen;
}

}  // namespace weft
