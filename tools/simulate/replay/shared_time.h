// Computations and messages that share a core or a link: each goes on more slowly while others do.
// Private to tools/simulate/replay/.
#pragma once

#include <vector>

#include "weft/parallel/step_schedule.h"

namespace weft::simulator {

/// What a rank does from `begin` to `end`, and which part of its time it needs a core, or the thin
/// link: 0 to 1.
struct SharedTask {
  double begin = 0, end = 0;
  double core = 1, link = 0;
};

/// For each task the time in which it had to leave the core, or the link, to others: with n of them
/// at once each is taken to have an n-th.
std::vector<double> lost_to_others(const std::vector<SharedTask>& tasks);

/// Of a message, by its number (parallel::StepCheck::Turn).
struct MessageNeeds {
  double core = 0, link = 0;  ///< as in SharedTask
};

struct SharedTimeline {
  parallel::StepTimeline timeline;
  bool settled = true;  ///< else the times still swing, by more than 1e-7 s
};

/// parallel::simulate() of ranks with these costs, if each had a core and a link for everything,
/// but with what all take longer because they share them.
SharedTimeline simulate_shared(const parallel::StepSchedule& step,
                               const std::vector<parallel::StepCosts>& ranks,
                               const std::vector<MessageNeeds>& messages);

}  // namespace weft::simulator
