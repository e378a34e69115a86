#include "weft/parallel/simulate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/parallel/schedule_parts.h"

namespace weft::parallel {
namespace {

using Kind = Action::Kind;

void check_costs(const std::vector<double>& costs, const char* of, std::size_t count,
                 const char* whose = "stages") {
  WEFT_CHECK(costs.size() == count, InvalidArgument, "simulate", costs.size(), " costs of ", of,
             " for ", count, ' ', whose, "; give one each");
  for (const double cost : costs) {
    WEFT_CHECK(std::isfinite(cost) && cost >= 0, InvalidArgument, "simulate", "got ", cost,
               " s as a cost of ", of, ", expected 0 or more");
  }
}

// `costs`: a StageCosts, or a StageCosts::MicroBatch.
template <class Costs>
double cost_among(const Action& action, const Costs& costs) {
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

double cost(const Action& action, const StageCosts& costs) {
  return costs.micro_batches.empty() ? cost_among(action, costs)
                                     : cost_among(action, costs.micro_batches[action.micro_batch]);
}

template <class Costs>
void check_lists(const Costs& costs, std::size_t stages) {
  check_costs(costs.forward, "forward", stages);
  check_costs(costs.backward_input, "backward_input", stages);
  check_costs(costs.backward_weight, "backward_weight", stages);
}

bool sends(const Action& action) {
  return action.kind == Kind::send_activation || action.kind == Kind::send_gradient;
}

// Links between devices. Each carries the messages of one direction one after the other, whichever
// stages send them.
class Links {
 public:
  Links(const StageCosts& costs, const std::vector<int>& device_of_stage)
      : costs_(costs), device_of_stage_(device_of_stage) {}

  // When a result that was ready at time `ready` arrives at the neighbouring stage.
  double arrival(const Action& from, double ready) {
    const bool forward = from.kind == Kind::forward || from.kind == Kind::send_activation;
    const int to = from.stage + (forward ? 1 : -1);
    if (!costs_.link.empty() && 0 <= to && to < std::ssize(device_of_stage_)) {
      double& free = free_[{device_of_stage_[from.stage], device_of_stage_[to]}];
      ready = free = std::max(ready, free) + costs_.link[std::min(from.stage, to)];
    }
    return ready + costs_.transfer;
  }

 private:
  const StageCosts& costs_;
  const std::vector<int>& device_of_stage_;
  std::map<std::pair<int, int>, double> free_;  // by devices: from when on the link is free
};

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
  const auto stages = static_cast<std::size_t>(schedule.stages);
  if (costs.micro_batches.empty()) {
    check_lists(costs, stages);
  } else {
    WEFT_CHECK(std::ssize(costs.micro_batches) == schedule.micro_batches, InvalidArgument,
               "simulate", costs.micro_batches.size(), " costs of micro-batches, expected ",
               schedule.micro_batches);
    for (const StageCosts::MicroBatch& each : costs.micro_batches) check_lists(each, stages);
  }
  check_costs({costs.transfer}, "transfer", 1);
  if (!costs.link.empty()) check_costs(costs.link, "link", stages);
  if (!costs.begin.empty()) check_costs(costs.begin, "begin", schedule.devices.size(), "devices");
  // The actions whose end starts a message to another device: sends or, in a schedule without
  // sends, the actions that make the results.
  const std::set<int> travelling = [&] {
    std::set<int> found;
    for (const ScheduleCheck::Step& step : checked.order) found.insert(step.after);
    return found;
  }();
  Timeline timeline;
  timeline.busy.resize(schedule.devices.size());
  std::vector<double> free(schedule.devices.size());
  if (!costs.begin.empty()) free = costs.begin;
  std::vector<double> arrivals(checked.order.size());
  Links links(costs, checked.device_of_stage);
  for (const auto& [action, device, after] : checked.order) {
    double begin = free[device];
    if (after != -1) begin = std::max(begin, arrivals[after]);
    const double takes = cost(action, costs);
    free[device] = begin + takes;
    timeline.busy[device] += takes;
    timeline.end = std::max(timeline.end, free[device]);
    const int index = static_cast<int>(timeline.actions.size());
    if (sends(action) || travelling.contains(index)) {
      arrivals[index] = links.arrival(action, free[device]);
    }
    timeline.actions.push_back(
        {action, device, begin, sends(action) ? arrivals[index] : free[device]});
  }
  return timeline;
}

std::string draw_bars(const std::vector<std::string>& labels, const std::vector<DrawnBar>& bars,
                      double end, double unit, int columns) {
  WEFT_CHECK(std::isfinite(unit) && unit > 0, InvalidArgument, "draw", "got ", unit,
             " s as a unit, expected more than 0");
  constexpr std::string_view kDigits = "0123456789abcdefghijklmnopqrstuvwxyz";
  std::size_t label = 1;
  for (const std::string& each : labels) label = std::max(label, each.size() + 1);
  const double units = std::ceil(end / unit),
               room = static_cast<double>((columns - static_cast<std::int64_t>(label)) / 2);
  const auto cells = static_cast<std::size_t>(std::max(0.0, std::min(units, room)));
  std::vector<std::string> rows = labels;
  for (std::string& row : rows) {
    row.resize(label, ' ');
    for (std::size_t i = 0; i < cells; ++i) row += " .";
  }
  const auto cell = [&](double seconds) {
    return static_cast<std::size_t>(
        std::min(std::round(seconds / unit), static_cast<double>(cells)));
  };
  for (const DrawnBar& bar : bars) {
    const std::size_t first = cell(bar.begin), last = cell(bar.end);
    if (first == last) continue;
    std::string drawn((last - first) * 2, '-');
    drawn[0] = bar.letter;
    drawn[1] = kDigits[static_cast<std::size_t>(bar.number) % kDigits.size()];
    rows[bar.row].replace(label + first * 2, drawn.size(), drawn);
  }
  std::string text;
  for (const std::string& row : rows) text += row + '\n';
  if (units > room) {
    text += detail::concat("(cut behind ", cells, " of ", units, " units of ", unit, " s)\n");
  }
  return text;
}

std::string draw(const Timeline& timeline, double unit, int columns) {
  std::vector<std::string> labels;
  for (std::size_t d = 0; d < timeline.busy.size(); ++d) labels.push_back(std::to_string(d));
  std::vector<DrawnBar> bars;
  for (const auto& [action, device, begin, end] : timeline.actions) {
    WEFT_CHECK(0 <= device && device < std::ssize(labels), InvalidArgument, "draw",
               to_string(action), " is on device ", device, " of ", labels.size());
    if (is_communication(action.kind)) continue;
    bars.push_back(
        {static_cast<std::size_t>(device), begin, end, to_string(action)[0], action.micro_batch});
  }
  return draw_bars(labels, bars, timeline.end, unit, columns);
}

}  // namespace weft::parallel
