// When the actions of a step would run.
#include <algorithm>
#include <cmath>

#include "weft/core/base/error.h"
#include "weft/parallel/schedule_parts.h"
#include "weft/parallel/step_check.h"

namespace weft::parallel {
namespace {

using Kind = StepAction::Kind;
using Phase = StepAction::Phase;

void check_costs(const std::vector<double>& costs, const char* of, int expected, bool may_lack) {
  if (may_lack && costs.empty()) return;
  WEFT_CHECK(costs.size() == static_cast<std::size_t>(expected), InvalidArgument, "simulate",
             costs.size(), " costs of ", of, ", expected ", expected);
  for (const double cost : costs) {
    WEFT_CHECK(std::isfinite(cost) && cost >= 0, InvalidArgument, "simulate", "got ", cost,
               " s as a cost of ", of, ", expected 0 or more");
  }
}

const std::vector<double>& message_costs(const StepCosts& costs, Kind kind) {
  switch (kind) {
    case Kind::unshard: return costs.unshard;
    case Kind::forward: return costs.outputs;
    case Kind::backward: return costs.inputs;
    default: return costs.reduce;
  }
}

double message_cost(const StepCosts& costs, const StepAction& action, int number) {
  if (!costs.messages.empty()) return costs.messages[number];
  const std::vector<double>& takes = message_costs(costs, action.kind);
  return takes.empty() ? 0 : takes[action.unit];
}

}  // namespace

StepCosts equal_costs(const StepSchedule& step, double forward, double backward, double optimizer,
                      double message) {
  const std::size_t visits = step.ranks.empty()
                                 ? 0
                                 : static_cast<std::size_t>(std::ranges::count(
                                       step.ranks[0], StepAction{Kind::forward}, [](StepAction a) {
                                         a.unit = 0;
                                         return a;
                                       }));
  const std::vector<double> messages(static_cast<std::size_t>(std::max(0, step.units)), message);
  return {std::vector<double>(visits, forward),
          std::vector<double>(visits, backward),
          optimizer,
          messages,
          messages,
          messages,
          messages};
}

StepTimeline simulate(const StepSchedule& step, const StepCosts& costs) {
  return simulate(step, std::vector<StepCosts>(step.ranks.size(), costs));
}

StepTimeline simulate(const StepSchedule& step, const std::vector<StepCosts>& by_rank) {
  const StepCheck checked = check(step);
  const std::size_t ranks = step.ranks.size();
  WEFT_CHECK(by_rank.size() == ranks, InvalidArgument, "simulate", "costs of ", by_rank.size(),
             " ranks, expected ", ranks);
  for (const StepCosts& costs : by_rank) {
    check_costs(costs.forward, "forward", checked.visits, false);
    check_costs(costs.backward, "backward", checked.visits, false);
    check_costs({costs.optimizer}, "optimizer", 1, false);
    check_costs({costs.begin}, "begin", 1, false);
    check_costs(costs.unshard, "unshard", step.units, true);
    check_costs(costs.reduce, "reduce", step.units, true);
    check_costs(costs.outputs, "outputs", step.units, true);
    check_costs(costs.inputs, "inputs", step.units, true);
    check_costs(costs.messages, "messages", checked.messages, true);
  }
  struct Message {
    double posted = 0, begin = 0, end = 0;
    std::vector<std::size_t> starts;  // indices of the timeline's actions
  };
  std::vector<Message> messages(static_cast<std::size_t>(checked.messages));
  std::vector<double> now(ranks), group_free(kMessageGroups);
  for (std::size_t r = 0; r < ranks; ++r) now[r] = by_rank[r].begin;
  StepTimeline timeline;
  timeline.busy.resize(ranks);
  timeline.waiting.resize(ranks);
  for (const auto& [action, rank, visit, number] : checked.order) {
    const double begin = now[rank];
    double end = begin;
    if (action.phase == Phase::wait) {
      end = std::max(begin, messages[number].end);
      timeline.waiting[rank] += end - begin;
    } else if (action.phase == Phase::start) {
      Message& message = messages[number];
      message.posted = std::max(message.posted, begin);
      message.starts.push_back(timeline.actions.size());
      if (message.starts.size() == ranks) {
        message.begin = std::max(message.posted, group_free[group_of(action.kind)]);
        message.end = message.begin + message_cost(by_rank.front(), action, number);
        group_free[group_of(action.kind)] = message.end;
      }
    } else {
      const StepCosts& costs = by_rank[rank];
      if (action.kind == Kind::forward) end += costs.forward[visit];
      if (action.kind == Kind::backward) end += costs.backward[visit];
      if (action.kind == Kind::optimizer) end += costs.optimizer;
      timeline.busy[rank] += end - begin;
    }
    now[rank] = end;
    timeline.end = std::max(timeline.end, end);
    timeline.actions.push_back({action, rank, begin, end});
  }
  for (const Message& message : messages) {
    for (const std::size_t start : message.starts) {
      timeline.actions[start].begin = message.begin;
      timeline.actions[start].end = message.end;
    }
  }
  return timeline;
}

std::string draw(const StepTimeline& timeline, double unit, int columns) {
  const std::size_t ranks = timeline.busy.size();
  std::vector<bool> used(kMessageGroups);
  for (const TimedStepAction& timed : timeline.actions) {
    if (timed.action.phase == Phase::start) used[group_of(timed.action.kind)] = true;
  }
  // A rank's own row, and those of its messages.
  std::vector<std::string> labels;
  std::vector<std::size_t> row(kMessageGroups);
  for (std::size_t r = 0; r < ranks; ++r) {
    labels.push_back(std::to_string(r));
    for (int group = 0; group < kMessageGroups; ++group) {
      if (!used[group]) continue;
      if (r == 0) row[group] = labels.size();
      labels.emplace_back(">");
    }
  }
  const std::size_t rows = ranks > 0 ? labels.size() / ranks : 0;
  std::vector<DrawnBar> bars;
  for (const auto& [action, rank, begin, end] : timeline.actions) {
    if (action.phase == Phase::wait) continue;
    WEFT_CHECK(0 <= rank && rank < std::ssize(timeline.busy), InvalidArgument, "draw",
               to_string(action), " is on rank ", rank, " of ", ranks);
    const bool travels = action.phase == Phase::start;
    bars.push_back(
        {static_cast<std::size_t>(rank) * rows + (travels ? row[group_of(action.kind)] : 0), begin,
         end, to_string(action)[travels ? 1 : 0], action.unit});
  }
  return draw_bars(labels, bars, timeline.end, unit, columns);
}

}  // namespace weft::parallel
