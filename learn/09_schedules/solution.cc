// Exercise 9: schedules of a pipeline. README.md says what to write; ./weft learn 9 judges it.
#include "weft/learn/09_schedules/solution.h"

#include <algorithm>
#include <string>
#include <vector>

namespace weft::learn {

using parallel::Action;
using parallel::Schedule;
using Kind = Action::Kind;  // forward, backward, backward_input (I), backward_weight (W)

namespace {

Schedule empty_schedule(const std::string& name, int stages, int micro_batches) {
  return {name, stages, micro_batches, std::vector<std::vector<Action>>(stages)};
}

}  // namespace

Schedule gpipe(int stages, int micro_batches) {
  Schedule schedule = empty_schedule("gpipe", stages, micro_batches);
  for (int s = 0; s < stages; ++s) {
    std::vector<Action>& list = schedule.devices[s];
    for (int m = 0; m < micro_batches; ++m) list.push_back({Kind::forward, s, m});
    not_yet("gpipe: the backwards");
  }
  return schedule;
}

Schedule one_f_one_b(int stages, int micro_batches) {
  Schedule schedule = empty_schedule("1f1b", stages, micro_batches);
  for (int s = 0; s < stages; ++s) {
    std::vector<Action>& list = schedule.devices[s];
    const int warm_up = 0;  // how many forwards come before forward and backward take turns?
    not_yet("one_f_one_b: the warm-up, the turns, and the rest");
  }
  return schedule;
}

Schedule zero_bubble_h1(int stages, int micro_batches) {
  Schedule schedule = empty_schedule("zb-h1", stages, micro_batches);
  for (int s = 0; s < stages; ++s) {
    not_yet("zero_bubble_h1: as one_f_one_b, with I and W in place of each backward");
  }
  return schedule;
}

}  // namespace weft::learn
