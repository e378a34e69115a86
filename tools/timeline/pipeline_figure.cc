// A step of a pipeline, predicted and measured.
#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/tools/timeline/figures.h"

namespace weft::timeline {
namespace {

using parallel::Action;
using parallel::Schedule;
using parallel::TimedAction;
using parallel::Timeline;
using weft::detail::concat;
using Kind = Action::Kind;

constexpr const char* kOp = "timeline";

// --- Reading -------------------------------------------------------------------------------------

struct KindName {
  Kind kind;
  const char* name;  // of its spans
  int saturation, lightness;
};
constexpr KindName kKinds[] = {{Kind::forward, "forward", 65, 78},
                               {Kind::backward, "backward", 60, 36},
                               {Kind::backward_input, "backward_input", 60, 36},
                               {Kind::backward_weight, "backward_weight", 45, 58},
                               {Kind::recompute, "recompute", 45, 91}};

const KindName& named(Kind kind) { return *std::ranges::find(kKinds, kind, &KindName::kind); }

// None for spans that are no action: "wait", "step".
std::optional<Action> action_of(const TraceSpan& span) {
  if (span.category != "pipeline") return {};
  const auto found = std::ranges::find(kKinds, span.name, &KindName::name);
  if (found == std::end(kKinds)) return {};
  WEFT_CHECK(span.step >= 0 && span.stage >= 0 && span.stage < parallel::kMostStages &&
                 span.micro_batch >= 0 && span.micro_batch < parallel::kMostMicroBatches,
             InvalidArgument, kOp, "the span ", span.name, " is of step ", span.step, ", stage ",
             span.stage, ", micro-batch ", span.micro_batch,
             "; needed are all three, as train::Recorder and Pipeline give them");
  return Action{found->kind, static_cast<int>(span.stage), static_cast<int>(span.micro_batch)};
}

// Of one device; each process has its own.
struct Place {
  std::int64_t rank;
  std::string device;
  auto operator<=>(const Place&) const = default;
};
using Lists = std::map<Place, std::vector<TimedAction>>;

// Leaves the ranks that have the first pipeline; returns how many there were.
int keep_first_pipeline(Lists& lists) {
  std::map<int, std::int64_t> rank_of_stage;
  std::set<std::int64_t> all, kept;
  for (const auto& [place, actions] : lists) {
    all.insert(place.rank);
    for (const TimedAction& timed : actions) {
      rank_of_stage.emplace(timed.action.stage, place.rank);  // the lowest one
    }
  }
  for (const auto& [stage, rank] : rank_of_stage) kept.insert(rank);
  std::erase_if(lists, [&](const auto& list) { return !kept.contains(list.first.rank); });
  return static_cast<int>(all.size() / kept.size());
}

PipelineStep step_of(std::int64_t number, Lists lists) {
  const int pipelines = keep_first_pipeline(lists);
  const bool several_ranks = lists.begin()->first.rank != lists.rbegin()->first.rank;
  std::vector<std::pair<Place, std::vector<TimedAction>>> rows(lists.begin(), lists.end());
  const auto first_stage = [](const auto& row) {
    return std::ranges::min(row.second, {}, [](const TimedAction& t) { return t.action.stage; })
        .action.stage;
  };
  std::ranges::sort(rows, {}, first_stage);
  PipelineStep step{.step = number, .schedule = {.name = "traced"}, .pipelines = pipelines};
  double begin = std::numeric_limits<double>::infinity();
  for (auto& [place, actions] : rows) {
    std::ranges::sort(actions, {}, [](const TimedAction& t) { return std::pair(t.begin, t.end); });
    begin = std::min(begin, actions.front().begin);
  }
  for (const auto& [place, actions] : rows) {
    const int device = static_cast<int>(step.devices.size());
    step.devices.push_back(several_ranks ? concat("rank ", place.rank, ", ", place.device)
                                         : place.device);
    std::vector<Action>& list = step.schedule.devices.emplace_back();
    double& busy = step.measured.busy.emplace_back(0);
    for (const TimedAction& timed : actions) {
      step.schedule.stages = std::max(step.schedule.stages, timed.action.stage + 1);
      step.schedule.micro_batches =
          std::max(step.schedule.micro_batches, timed.action.micro_batch + 1);
      list.push_back(timed.action);
      step.measured.actions.push_back(
          {timed.action, device, timed.begin - begin, timed.end - begin});
      step.measured.end = std::max(step.measured.end, timed.end - begin);
      busy += timed.end - timed.begin;
    }
  }
  return step;
}

// As the user asked for it, if it is one of weft's own: "1f1b, checkpoint except_last".
std::string name_of(const Schedule& schedule) {
  const int devices = static_cast<int>(schedule.devices.size());
  for (const std::string& name : parallel::schedule_names()) {
    const bool interleaved = name == "interleaved";
    if (interleaved ? schedule.stages % devices != 0 : schedule.stages != devices) {
      continue;
    }
    for (const auto recompute : {parallel::Recompute::never, parallel::Recompute::except_last,
                                 parallel::Recompute::always}) {
      const Schedule made = parallel::make_schedule(name, schedule.stages, schedule.micro_batches,
                                                    recompute, interleaved ? devices : 0);
      if (made.devices != schedule.devices) continue;
      return name + ", checkpoint " + parallel::to_string(recompute);
    }
  }
  return "a schedule of the user's";
}

// --- Drawing -------------------------------------------------------------------------------------

// Neighbouring micro-batches far apart in colour.
Color color_of(const Action& action) {
  const KindName& kind = named(action.kind);
  return {(210 + action.micro_batch * 137) % 360, kind.saturation, kind.lightness};
}

using Times = std::map<std::string, const TimedAction*>;

Times by_action(const Timeline& timeline) {
  Times times;
  for (const TimedAction& timed : timeline.actions) times[to_string(timed.action)] = &timed;
  return times;
}

std::string says(const char* what, const TimedAction& timed) {
  return concat('\n', what, ": begins at ", milliseconds(timed.begin), ", takes ",
                milliseconds(timed.end - timed.begin));
}

Panel panel_of(const char* what, const PipelineStep& step, const Timeline& shown,
               const Times& measured, const Times& predicted) {
  Panel panel{concat(what, ": ", milliseconds(shown.end), ", bubble ", percent(shown.bubble()))};
  for (std::size_t d = 0; d < step.devices.size(); ++d) {
    panel.rows.push_back({step.devices[d], "idle " + percent(1 - shown.busy[d] / shown.end)});
  }
  for (const TimedAction& timed : shown.actions) {
    const Action& action = timed.action;
    const std::string name = to_string(action);
    panel.rows[static_cast<std::size_t>(timed.device)].bars.push_back(
        {timed.begin, timed.end, color_of(action), std::to_string(action.micro_batch),
         concat(name, ": ", named(action.kind).name, " of micro-batch ", action.micro_batch,
                " in stage ", action.stage, " on ",
                step.devices[static_cast<std::size_t>(timed.device)],
                says("measured", *measured.at(name)), says("predicted", *predicted.at(name))),
         action.kind == Kind::recompute});
  }
  return panel;
}

// Of schedules without idle time but at both ends, whose stages all take the same time.
std::string formula(const PipelineStep& step) {
  const std::size_t p = step.devices.size();
  const int m = step.schedule.micro_batches;
  const auto devices = static_cast<double>(p);
  const double per_device = step.schedule.stages / devices;
  if (per_device > 1 && m < devices) return "Fewer micro-batches than devices: no formula";
  return concat("GPipe and 1F1B with equal stages: bubble ",
                per_device == 1 ? "(p-1)/(m+p-1)" : "(p-1)/(vm+p-1)", " = ",
                percent((devices - 1) / (per_device * m + devices - 1)), " for p = ", p,
                " devices, m = ", m, " micro-batches",
                per_device == 1 ? "" : concat(", v = ", per_device, " stages on each"));
}

}  // namespace

std::vector<PipelineStep> pipeline_steps(const std::vector<TraceSpan>& spans) {
  std::map<std::int64_t, Lists> found;
  for (const TraceSpan& span : spans) {
    const std::optional<Action> action = action_of(span);
    if (!action) continue;
    found[span.step][{span.rank, span.device}].push_back({*action, 0, span.begin, span.end});
  }
  std::vector<PipelineStep> steps;
  std::optional<Error> wrong;
  for (auto& [number, lists] : found) {
    try {
      PipelineStep step = step_of(number, std::move(lists));
      check(step.schedule);
      if (step.measured.end > 0) steps.push_back(std::move(step));
    } catch (const Error& error) {  // cut off by the end of the run, say
      wrong = error.with_context(concat("step ", number, " of the trace"));
    }
  }
  if (steps.empty() && wrong) throw *wrong;
  return steps;
}

parallel::StageCosts median_costs(const std::vector<PipelineStep>& steps, std::size_t without) {
  const Schedule& schedule = steps[without].schedule;
  const auto all = static_cast<std::size_t>(schedule.stages);
  std::map<Kind, std::vector<std::vector<double>>> times;  // by kind and stage
  const auto take = [&](const PipelineStep& step) {
    for (const auto& [action, device, begin, end] : step.measured.actions) {
      auto& of_kind = times[action.kind];
      of_kind.resize(all);
      of_kind[static_cast<std::size_t>(action.stage)].push_back(end - begin);
    }
  };
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (i != without && steps[i].schedule == schedule) take(steps[i]);
  }
  if (times.empty()) take(steps[without]);
  const auto cost = [&](Kind kind, std::size_t stage) {
    const auto found = times.find(kind);
    return found == times.end() || found->second[stage].empty() ? 0 : median(found->second[stage]);
  };
  parallel::StageCosts costs;
  for (std::size_t s = 0; s < all; ++s) {
    costs.forward.push_back(cost(Kind::forward, s));
    costs.backward_weight.push_back(cost(Kind::backward_weight, s));
    // Of a stage that does not split its backwards B is I and W.
    const double input = cost(Kind::backward_input, s);
    costs.backward_input.push_back(input > 0 ? input : cost(Kind::backward, s));
  }
  return costs;
}

Figure pipeline_figure(const std::vector<TraceSpan>& spans, std::int64_t wanted) {
  const std::vector<PipelineStep> steps = pipeline_steps(spans);
  std::vector<StepLength> lengths;
  for (const PipelineStep& step : steps) lengths.push_back({step.step, step.measured.end});
  const std::size_t chosen = choose_step(lengths, wanted);
  const PipelineStep& step = steps[chosen];
  const Timeline predicted = simulate(step.schedule, median_costs(steps, chosen));
  const auto others = std::ranges::count(steps, step.schedule, &PipelineStep::schedule) - 1;

  const std::string which =
      step.pipelines == 1 ? "a pipeline" : concat("the first of ", step.pipelines, " pipelines");
  Figure figure{concat("Step ", step.step, " of ", which, ": ", step.schedule.stages, " stages on ",
                       step.devices.size(), " devices, ", step.schedule.micro_batches,
                       " micro-batches")};
  char ratio[32];
  std::snprintf(ratio, sizeof ratio, "%.3f", step.measured.end / predicted.end);
  figure.facts = {
      concat("Schedule: ", name_of(step.schedule), "."),
      concat("Measured ", milliseconds(step.measured.end), ", ", ratio, " times the predicted ",
             milliseconds(predicted.end), "; bubble ", percent(step.measured.bubble()),
             " measured, ", percent(predicted.bubble()), " predicted."),
      formula(step) + ".",
      others > 0 ? concat("Predicted from the medians of each stage's times over ", others,
                          " other steps of the trace, transfers taking no time.")
                 : "Predicted from this step's own medians, the only one of its schedule."};
  bool used[std::size(kKinds)] = {};
  for (const auto& list : step.schedule.devices) {
    for (const Action& action : list) used[&named(action.kind) - kKinds] = true;
  }
  for (std::size_t k = 0; k < std::size(kKinds); ++k) {
    if (!used[k]) continue;
    const Kind kind = kKinds[k].kind;
    figure.legend.push_back({kKinds[k].name, color_of({kind, 0, 0}), kind == Kind::recompute});
  }
  figure.legend.push_back({"a colour and number per micro-batch", color_of({Kind::forward, 0, 1})});
  const Times measured_times = by_action(step.measured), predicted_times = by_action(predicted);
  figure.panels = {panel_of("Predicted", step, predicted, measured_times, predicted_times),
                   panel_of("Measured", step, step.measured, measured_times, predicted_times)};
  return figure;
}

}  // namespace weft::timeline
