// Runs a schedule's lists in the simplest way, to compare with check() and simulate().
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "weft/parallel/schedule.h"
#include "weft/parallel/simulate.h"

namespace weft::testing {

using ActionKey = std::tuple<parallel::Action::Kind, int, int>;

inline ActionKey key(const parallel::Action& a) { return {a.kind, a.stage, a.micro_batch}; }

/// The end time of each action; nothing if a device waits for ever. Checks every device again and
/// again, with everything that its next action needs, until nothing changes. For schedules with all
/// actions.
inline std::optional<std::map<ActionKey, double>> run_by_hand(const parallel::Schedule& schedule,
                                                              const parallel::StageCosts& costs) {
  using Kind = parallel::Action::Kind;
  std::map<ActionKey, std::size_t> device;
  for (std::size_t d = 0; d < schedule.devices.size(); ++d) {
    for (const parallel::Action& a : schedule.devices[d]) device[key(a)] = d;
  }
  std::map<ActionKey, double> ends;
  std::vector<std::size_t> next(schedule.devices.size());
  std::vector<double> clock(schedule.devices.size());

  // Raises `begin` to the end of `need` plus `later`; false if `need` has not ended.
  const auto wait = [&](ActionKey need, double& begin, double later = 0) {
    if (!device.contains(need)) return true;
    const auto found = ends.find(need);
    if (found == ends.end()) return false;
    begin = std::max(begin, found->second + later);
    return true;
  };
  // The same for a result of another stage, which may have to be sent.
  const auto wait_for_stage = [&](ActionKey need, Kind send, Kind receive, int to, double& begin) {
    if (!device.contains(need)) return true;
    const auto [kind, stage, m] = need;
    const bool remote = device.at(need) != device.at({Kind::forward, to, m});
    return wait({receive, to, m}, begin) && wait({send, stage, m}, begin, costs.transfer) &&
           wait(need, begin, remote ? costs.transfer : 0);
  };
  const auto run = [&](const parallel::Action& a, double& begin) -> std::optional<double> {
    const auto [kind, s, m] = a;
    const bool ready = [&] {
      switch (kind) {
        case Kind::forward:
          return wait_for_stage({Kind::forward, s - 1, m}, Kind::send_activation,
                                Kind::receive_activation, s, begin);
        case Kind::backward:
        case Kind::backward_input:
          return wait({Kind::forward, s, m}, begin) && wait({Kind::recompute, s, m}, begin) &&
                 wait_for_stage({Kind::backward, s + 1, m}, Kind::send_gradient,
                                Kind::receive_gradient, s, begin) &&
                 wait_for_stage({Kind::backward_input, s + 1, m}, Kind::send_gradient,
                                Kind::receive_gradient, s, begin);
        case Kind::backward_weight: return wait({Kind::backward_input, s, m}, begin);
        case Kind::recompute:
        case Kind::send_activation: return wait({Kind::forward, s, m}, begin);
        case Kind::send_gradient:
          return wait({Kind::backward, s, m}, begin) && wait({Kind::backward_input, s, m}, begin);
        default: return true;
      }
    }();
    if (!ready) return std::nullopt;
    switch (kind) {
      case Kind::forward:
      case Kind::recompute: return begin + costs.forward[s];
      case Kind::backward: return begin + costs.backward_input[s] + costs.backward_weight[s];
      case Kind::backward_input: return begin + costs.backward_input[s];
      case Kind::backward_weight: return begin + costs.backward_weight[s];
      default: return begin;
    }
  };

  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t d = 0; d < schedule.devices.size(); ++d) {
      if (next[d] == schedule.devices[d].size()) continue;
      const parallel::Action& a = schedule.devices[d][next[d]];
      double begin = clock[d];
      if (const auto end = run(a, begin)) {
        clock[d] = ends[key(a)] = *end;
        ++next[d];
        moved = true;
      }
    }
  }
  if (ends.size() < device.size()) return std::nullopt;
  return ends;
}

}  // namespace weft::testing
