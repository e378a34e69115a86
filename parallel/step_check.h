// Checks of a step, which may come from a text. Private to parallel/.
#pragma once

#include "weft/parallel/schedule_check.h"
#include "weft/parallel/step_schedule.h"

namespace weft::parallel {

/// Of the messages of a step, those whose order is one: gathers, sums of gradients, sums of what
/// layers make.
inline constexpr int kMessageGroups = 3;
constexpr int group_of(StepAction::Kind kind) {
  using Kind = StepAction::Kind;
  if (kind == Kind::unshard) return 0;
  return kind == Kind::reduce || kind == Kind::all_reduce ? 1 : 2;
}

/// Whether it is run, or started and waited for, as its kind wants it.
constexpr bool is_possible(const StepAction& action) {
  using Kind = StepAction::Kind;
  return action.phase == StepAction::Phase::run
             ? action.kind < Kind::unshard
             : action.kind != Kind::optimizer && action.kind != Kind::reshard;
}

/// As check(), with the places in errors.
StepCheck check(const StepSchedule& step, const TextPlaces& places);

}  // namespace weft::parallel
