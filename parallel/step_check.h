// Checks a step, and names places in its text if it has one. Private to parallel/.
#pragma once

#include "weft/parallel/schedule_check.h"
#include "weft/parallel/step_schedule.h"

namespace weft::parallel {

/// The groups of a step's messages; within a group they run in one order: gathers, sums of
/// gradients, sums of layers' results.
inline constexpr int kMessageGroups = 3;
constexpr int group_of(StepAction::Kind kind) {
  using Kind = StepAction::Kind;
  if (kind == Kind::unshard) return 0;
  return kind == Kind::reduce || kind == Kind::all_reduce ? 1 : 2;
}

/// Whether its phase fits its kind: actions run, messages are started and waited for.
constexpr bool is_possible(const StepAction& action) {
  using Kind = StepAction::Kind;
  return action.phase == StepAction::Phase::run
             ? action.kind < Kind::unshard
             : action.kind != Kind::optimizer && action.kind != Kind::reshard;
}

/// As check(), with the places in errors.
StepCheck check(const StepSchedule& step, const TextPlaces& places);

}  // namespace weft::parallel
