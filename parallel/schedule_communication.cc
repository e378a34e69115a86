// Adds sends and receives to a schedule.
#include <set>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/parallel/schedule.h"

namespace weft::parallel {

using Kind = Action::Kind;

Action counterpart(const Action& action) {
  const auto [kind, s, m] = action;
  WEFT_CHECK(0 <= s && s < kMostStages, InvalidArgument, "schedule", to_string(action),
             ": the stages are 0 to ", kMostStages - 1);
  switch (kind) {
    case Kind::send_activation: return {Kind::receive_activation, s + 1, m};
    case Kind::receive_activation: return {Kind::send_activation, s - 1, m};
    case Kind::send_gradient: return {Kind::receive_gradient, s - 1, m};
    case Kind::receive_gradient: return {Kind::send_gradient, s + 1, m};
    default:
      WEFT_THROW(InvalidArgument, "schedule", to_string(action), " neither sends nor receives");
  }
}

Schedule with_communication(const Schedule& schedule) {
  const std::vector<int> device_of_stage = check(schedule).device_of_stage;
  Schedule sending = schedule;
  for (std::vector<Action>& list : sending.devices) {
    std::vector<Action> out;
    std::set<std::pair<int, int>> received;  // gradients, before R
    const auto add_if_remote = [&](Action action) {
      const int other = counterpart(action).stage;
      if (other < 0 || other >= schedule.stages) return;
      if (device_of_stage[other] != device_of_stage[action.stage]) out.push_back(action);
    };
    for (const auto& [kind, stage, m] : list) {
      switch (kind) {
        case Kind::forward: add_if_remote({Kind::receive_activation, stage, m}); break;
        case Kind::recompute:
        case Kind::backward:
        case Kind::backward_input:
          if (received.emplace(stage, m).second) {
            add_if_remote({Kind::receive_gradient, stage, m});
          }
          break;
        case Kind::backward_weight: break;
        default:
          WEFT_THROW(InvalidArgument, "schedule", schedule.name,
                     " sends and receives already: ", to_string(Action{kind, stage, m}),
                     "; take it as it is");
      }
      out.push_back({kind, stage, m});
      if (kind == Kind::forward) add_if_remote({Kind::send_activation, stage, m});
      if (kind == Kind::backward || kind == Kind::backward_input) {
        add_if_remote({Kind::send_gradient, stage, m});
      }
    }
    list = std::move(out);
  }
  return sending;
}

}  // namespace weft::parallel
