#include "weft/kernels/choices.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "weft/core/choices.h"
#include "weft/core/error.h"
#include "weft/core/phase.h"
#include "weft/core/thread_state.h"

namespace weft {
namespace {

std::string to_text(double ms) {
  if (!std::isfinite(ms)) return "fails";
  char text[32];
  std::snprintf(text, sizeof text, "%.4g ms", ms);
  return text;
}

}  // namespace

std::string ChoiceProblem::key() const {
  std::string out = op + ' ';
  for (const std::int64_t word : words) out += std::to_string(word) + ',';
  std::string names;
  for (const std::string& name : candidates) names += name + ' ';
  return out + checksum(names);
}

std::optional<Measured> remembered_choice(const ChoiceProblem& problem) {
  ChoiceCache* const choices = thread_state().choices;
  if (!choices) return std::nullopt;
  const std::optional<Choice> found = choices->find(problem.machine, problem.key());
  if (!found) return std::nullopt;
  const auto& names = problem.candidates;
  if (std::find(names.begin(), names.end(), found->name) == names.end()) return std::nullopt;
  return Measured{found->name, found->ms};
}

void remember_choice(const ChoiceProblem& problem, const Measured& winner) {
  if (ChoiceCache* const choices = thread_state().choices) {
    // To the nanosecond: the rest is noise, and people read the file.
    choices->add(problem.machine, {problem.key(), winner.name, std::round(winner.ms * 1e6) / 1e6});
  }
}

void recall_or_time(const ChoiceProblem& problem, const std::function<bool(const Measured&)>& take,
                    const std::function<void()>& time) {
  const auto recall = [&] {
    const std::optional<Measured> remembered = remembered_choice(problem);
    return remembered && take(*remembered);
  };
  if (recall()) return;
  // Other ranks may wait for this one, or both for the one whose turn it is.
  const BusyScope busy("kernel timing");
  const ChoiceCache::Turn turn(thread_state().choices, problem.machine);
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
