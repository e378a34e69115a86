// Computations and messages that share a core or a link: each is slower while others run. Private
// to tools/simulate/replay/.
#pragma once

#include <vector>

#include "weft/parallel/step_schedule.h"

namespace weft::simulator {

/// What a rank does from `begin` to `end`. core, link: for which share of this time, 0 to 1, it
/// needs a core, or the thin link.
struct SharedTask {
  double begin = 0, end = 0;
  double core = 1, link = 0;
};

/// For each task the time for which others had the core, or the link. Of n tasks at the same time,
/// each is taken to get an n-th of it.
std::vector<double> lost_to_others(const std::vector<SharedTask>& tasks);

/// What a message needs. Messages are numbered as in parallel::StepCheck::Turn.
struct MessageNeeds {
  double core = 0, link = 0;  ///< as in SharedTask
};

struct SharedTimeline {
  parallel::StepTimeline timeline;
  bool settled = true;  ///< false: the times still change by more than 1e-7 s
};

/// parallel::simulate() of ranks that share cores and links. `ranks` are the costs of actions that
/// have a core and a link to themselves.
SharedTimeline simulate_shared(const parallel::StepSchedule& step,
                               const std::vector<parallel::StepCosts>& ranks,
                               const std::vector<MessageNeeds>& messages);

}  // namespace weft::simulator
