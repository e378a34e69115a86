#include "weft/kernels/plan/choices.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <map>
#include <mutex>

#include "weft/core/base/error.h"
#include "weft/core/runtime/log.h"
#include "weft/core/runtime/phase.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/kernels/plan/choice_cache.h"

namespace weft {
namespace {

std::string to_text(double ms) {
  if (!std::isfinite(ms)) return "fails";
  char text[32];
  std::snprintf(text, sizeof text, "%.4g ms", ms);
  return text;
}

bool is_candidate(const ChoiceProblem& problem, const std::string& name) {
  return std::find(problem.candidates.begin(), problem.candidates.end(), name) !=
         problem.candidates.end();
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

std::optional<Measured> remembered_choice(const ChoiceProblem& problem) {
  const std::optional<Choice> found = memory().find(problem.machine, problem.key());
  if (!found || !is_candidate(problem, found->name)) return std::nullopt;
  return Measured{found->name, found->ms};
}

void remember_choice(const ChoiceProblem& problem, const Measured& winner) {
  // To the nanosecond: the rest is noise, and people read the file.
  memory().add(problem.machine, {problem.key(), winner.name, std::round(winner.ms * 1e6) / 1e6});
  families().add(problem, winner.name);
}

void recall_or_time(const ChoiceProblem& problem,
                    const std::function<bool(const Measured&, std::string_view why)>& take,
                    const std::function<void()>& time) {
  const ThreadState& state = thread_state();
  const auto recall = [&] {
    const std::optional<Measured> remembered = remembered_choice(problem);
    if (!remembered || !take(*remembered, "remembered")) return false;
    families().add(problem, remembered->name);
    return true;
  };
  // Without a cache of the program's a choice is remembered for those who ask for timing.
  if (!state.benchmark && !state.choices) return;
  if (recall() || !state.benchmark) return;
  const std::string familiar = families().winner(problem);
  if (is_candidate(problem, familiar) && take({familiar, 0}, "as similar shapes")) return;
  // Other ranks may wait for this one, or both for the one whose turn it is.
  const BusyScope busy("kernel timing");
  const ChoiceCache::Turn turn(state.choices, problem.machine);
  if (!recall()) time();
}

void log_choice(const ChoiceProblem& problem, std::string_view winner, std::string_view why,
                std::span<const Measured> measured) {
  const ThreadState& state = thread_state();
  if (!state.log_perf || !state.log) return;
  std::string told;
  for (const std::string& name : problem.candidates) {
    told += (told.empty() ? "" : ", ") + name;
    const auto is_it = [&](const Measured& m) { return m.name == name; };
    const auto found = std::find_if(measured.begin(), measured.end(), is_it);
    if (found != measured.end()) told += ' ' + to_text(found->ms);
  }
  const std::string module = module_path();
  log_info(detail::concat("perf: ", problem.op, " ", problem.text, ": ", told, " -> ", winner, " (",
                          why, ")", module.empty() ? "" : " in ", module));
}

}  // namespace weft
