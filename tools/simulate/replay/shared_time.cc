#include "weft/tools/simulate/replay/shared_time.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace weft::simulator {
namespace {

using parallel::StepAction;

// What the action costs, if it is one that computes.
double* cost_of(const parallel::StepCheck::Turn& turn, std::vector<parallel::StepCosts>& ranks) {
  if (turn.action.phase != StepAction::Phase::run) return nullptr;
  parallel::StepCosts& costs = ranks[static_cast<std::size_t>(turn.rank)];
  const auto visit = static_cast<std::size_t>(turn.visit);
  switch (turn.action.kind) {
    case StepAction::Kind::forward: return &costs.forward[visit];
    case StepAction::Kind::backward: return &costs.backward[visit];
    case StepAction::Kind::optimizer: return &costs.optimizer;
    default: return nullptr;
  }
}

}  // namespace

std::vector<double> lost_to_others(const std::vector<SharedTask>& tasks) {
  struct Change {
    double when;
    bool begins;
    std::size_t task;
  };
  std::vector<Change> changes;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    if (!(tasks[i].end > tasks[i].begin)) continue;
    changes.push_back({tasks[i].begin, true, i});
    changes.push_back({tasks[i].end, false, i});
  }
  std::ranges::sort(changes, {}, [](const Change& c) { return std::pair(c.when, c.begins); });
  std::vector<double> lost(tasks.size());
  std::vector<std::size_t> active;
  double now = 0;
  for (const auto& [when, begins, task] : changes) {
    double core = 0, link = 0;
    for (const std::size_t i : active) core += tasks[i].core, link += tasks[i].link;
    for (const std::size_t i : active) {
      lost[i] += (when - now) * (tasks[i].core * (1 - 1 / std::max(1.0, core)) +
                                 tasks[i].link * (1 - 1 / std::max(1.0, link)));
    }
    now = when;
    if (begins) {
      active.push_back(task);
    } else {
      std::erase(active, task);
    }
  }
  return lost;
}

// What overlaps depends on how long each action takes, and that depends on what overlaps. So this
// begins without losses, and computes them again until they no longer change.
SharedTimeline simulate_shared(const parallel::StepSchedule& step,
                               const std::vector<parallel::StepCosts>& ranks,
                               const std::vector<MessageNeeds>& messages) {
  const auto order = parallel::check(step).order;
  std::vector<parallel::StepCosts> costs = ranks;
  parallel::StepTimeline timeline = parallel::simulate(step, costs);
  constexpr int kMostRounds = 60;
  for (int round = 0; round < kMostRounds; ++round) {
    std::vector<parallel::StepCosts> next = ranks;
    std::vector<double> slowest(messages.size());  // of the ranks
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      std::vector<SharedTask> tasks;
      std::vector<std::size_t> turns;
      for (std::size_t i = 0; i < order.size(); ++i) {
        const auto& [action, rank, begin, end] = timeline.actions[i];
        if (rank != static_cast<int>(r) || action.phase == StepAction::Phase::wait) continue;
        SharedTask task{begin, end};
        if (action.phase == StepAction::Phase::start) {
          const auto& needs = messages[static_cast<std::size_t>(order[i].message)];
          task.core = needs.core;
          task.link = needs.link;
        }
        tasks.push_back(task);
        turns.push_back(i);
      }
      const std::vector<double> lost = lost_to_others(tasks);
      for (std::size_t k = 0; k < tasks.size(); ++k) {
        const auto& turn = order[turns[k]];
        if (turn.action.phase == StepAction::Phase::start) {
          double& most = slowest[static_cast<std::size_t>(turn.message)];
          most = std::max(most, lost[k]);
        } else if (double* const cost = cost_of(turn, next)) {
          *cost += lost[k];
        }
      }
    }
    for (std::size_t m = 0; m < messages.size(); ++m) next.front().messages[m] += slowest[m];
    // Goes half of the way, since what overlaps may swing to and fro.
    double change = 0;
    const auto approach = [&](double& now, double then) {
      change = std::max(change, std::abs(then - now));
      now = (now + then) / 2;
    };
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      for (std::size_t v = 0; v < ranks[r].forward.size(); ++v) {
        approach(costs[r].forward[v], next[r].forward[v]);
        approach(costs[r].backward[v], next[r].backward[v]);
      }
      approach(costs[r].optimizer, next[r].optimizer);
    }
    for (std::size_t m = 0; m < messages.size(); ++m) {
      approach(costs.front().messages[m], next.front().messages[m]);
    }
    timeline = parallel::simulate(step, costs);
    constexpr double kSettled = 1e-7;  // seconds
    if (change < kSettled) return {std::move(timeline), true};
  }
  return {std::move(timeline), false};
}

}  // namespace weft::simulator
