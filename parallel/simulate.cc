#include "weft/parallel/simulate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>

#include "weft/core/base/error.h"

namespace weft::parallel {
namespace {

using Kind = Action::Kind;

void check_costs(const std::vector<double>& costs, const char* of, int stages) {
  WEFT_CHECK(costs.size() == static_cast<std::size_t>(stages), InvalidArgument, "simulate",
             costs.size(), " costs of ", of, " for ", stages, " stages; give one each");
  for (const double cost : costs) {
    WEFT_CHECK(std::isfinite(cost) && cost >= 0, InvalidArgument, "simulate", "got ", cost,
               " s as a cost of ", of, ", expected 0 or more");
  }
}

double cost(const Action& action, const StageCosts& costs) {
  const int s = action.stage;
  switch (action.kind) {
    case Kind::forward:
    case Kind::recompute: return costs.forward[s];
    case Kind::backward: return costs.backward_input[s] + costs.backward_weight[s];
    case Kind::backward_input: return costs.backward_input[s];
    case Kind::backward_weight: return costs.backward_weight[s];
    default: return 0;
  }
}

bool sends(const Action& action) {
  return action.kind == Kind::send_activation || action.kind == Kind::send_gradient;
}

}  // namespace

StageCosts equal_costs(int stages, double forward, double backward_input, double backward_weight,
                       double transfer) {
  WEFT_CHECK(1 <= stages && stages <= kMostStages, InvalidArgument, "simulate", "got ", stages,
             " stages, expected 1 to ", kMostStages);
  const auto all = [&](double cost) { return std::vector<double>(stages, cost); };
  return {all(forward), all(backward_input), all(backward_weight), transfer};
}

double Timeline::bubble() const {
  if (end == 0) return 0;
  return 1 -
         std::accumulate(busy.begin(), busy.end(), 0.0) / (static_cast<double>(busy.size()) * end);
}

Timeline simulate(const Schedule& schedule, const StageCosts& costs) {
  const ScheduleCheck checked = check(schedule);
  check_costs(costs.forward, "forward", schedule.stages);
  check_costs(costs.backward_input, "backward_input", schedule.stages);
  check_costs(costs.backward_weight, "backward_weight", schedule.stages);
  check_costs({costs.transfer}, "transfer", 1);
  Timeline timeline;
  timeline.busy.resize(schedule.devices.size());
  std::vector<double> free(schedule.devices.size());
  for (const auto& [action, device, after] : checked.order) {
    double begin = free[device];
    if (after != -1) {
      const TimedAction& other = timeline.actions[after];
      begin = std::max(begin, other.end + (sends(other.action) ? 0 : costs.transfer));
    }
    const double takes = cost(action, costs);
    free[device] = begin + takes;
    timeline.busy[device] += takes;
    timeline.end = std::max(timeline.end, free[device]);
    timeline.actions.push_back(
        {action, device, begin, sends(action) ? begin + costs.transfer : free[device]});
  }
  return timeline;
}

std::string draw(const Timeline& timeline, double unit, int columns) {
  WEFT_CHECK(std::isfinite(unit) && unit > 0, InvalidArgument, "draw", "got ", unit,
             " s as a unit, expected more than 0");
  constexpr std::string_view kDigits = "0123456789abcdefghijklmnopqrstuvwxyz";
  const std::size_t label = std::to_string(timeline.busy.size() - 1).size() + 1;
  const double units = std::ceil(timeline.end / unit),
               room = static_cast<double>((columns - static_cast<std::int64_t>(label)) / 2);
  const auto cells = static_cast<std::size_t>(std::max(0.0, std::min(units, room)));
  std::vector<std::string> rows(timeline.busy.size());
  for (std::size_t d = 0; d < rows.size(); ++d) {
    rows[d] = std::to_string(d);
    rows[d].resize(label, ' ');
    for (std::size_t i = 0; i < cells; ++i) rows[d] += " .";
  }
  const auto cell = [&](double seconds) {
    return static_cast<std::size_t>(
        std::min(std::round(seconds / unit), static_cast<double>(cells)));
  };
  for (const TimedAction& timed : timeline.actions) {
    WEFT_CHECK(0 <= timed.device && timed.device < std::ssize(rows), InvalidArgument, "draw",
               to_string(timed.action), " is on device ", timed.device, " of ", rows.size());
    const std::string letter = to_string(timed.action).substr(0, 1);
    if (letter == ">" || letter == "<") continue;
    const std::size_t begin = cell(timed.begin), end = cell(timed.end);
    if (begin == end) continue;
    std::string drawn((end - begin) * 2, '-');
    drawn[0] = letter[0];
    drawn[1] = kDigits[static_cast<std::size_t>(timed.action.micro_batch) % kDigits.size()];
    rows[timed.device].replace(label + begin * 2, drawn.size(), drawn);
  }
  std::string text;
  for (const std::string& row : rows) text += row + '\n';
  if (units > room) {
    text += detail::concat("(cut behind ", cells, " of ", units, " units of ", unit, " s)\n");
  }
  return text;
}

}  // namespace weft::parallel
