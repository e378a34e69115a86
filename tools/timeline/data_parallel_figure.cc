// A step of DataParallel: what each device does, and how long it idles.
#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/tools/timeline/figures.h"

namespace weft::timeline {
namespace {

using weft::detail::concat;

struct DataParallelStep {
  std::int64_t step = 0;
  double begin = std::numeric_limits<double>::infinity(), end = 0;
  std::vector<const TraceSpan*> spans;          // of the engine, and of backward
  std::map<std::int64_t, std::string> devices;  // by replica
};

struct Shade {
  const char* name;
  Color color;
};
constexpr Shade kShades[] = {{"scatter", {38, 75, 62}},         {"replicate", {285, 38, 68}},
                             {"parallel_apply", {210, 60, 74}}, {"gather", {160, 45, 45}},
                             {"backward", {215, 55, 38}},       {"other", {0, 0, 60}}};

const Shade& shade_of(const TraceSpan& span) {
  const std::string name = span.category == "parallel" ? span.name : "backward";
  const auto found = std::ranges::find(kShades, name, &Shade::name);
  return found == std::end(kShades) ? kShades[std::size(kShades) - 1] : *found;
}

Bar bar_of(const TraceSpan& span, double from) {
  std::string hover = span.name;
  if (span.category == "backward") hover = "backward of " + hover;
  if (span.replica >= 0) hover += concat(" of replica ", span.replica);
  if (!span.device.empty()) hover += " on " + span.device;
  hover += concat("\nbegins at ", milliseconds(span.begin - from), ", takes ",
                  milliseconds(span.length()));
  return {span.begin - from, span.end - from, shade_of(span).color,
          span.category == "parallel" ? span.name : "backward", hover};
}

// Of the bars together, which may overlap.
double covered(std::vector<Bar> bars) {
  std::ranges::sort(bars, {}, &Bar::begin);
  double sum = 0, end = 0;
  for (const Bar& bar : bars) {
    sum += std::max(0.0, bar.end - std::max(bar.begin, end));
    end = std::max(end, bar.end);
  }
  return sum;
}

std::vector<DataParallelStep> steps_of(const std::vector<TraceSpan>& spans) {
  std::map<std::int64_t, DataParallelStep> found;
  for (const TraceSpan& span : spans) {
    const bool backward = span.category == "phase" && span.name == "backward";
    if (span.step < 0 ||
        (span.category != "parallel" && span.category != "backward" && !backward)) {
      continue;
    }
    DataParallelStep& step = found[span.step];
    step.step = span.step;
    step.begin = std::min(step.begin, span.begin);
    step.end = std::max(step.end, span.end);
    step.spans.push_back(&span);
    if (span.name == "parallel_apply" && span.replica >= 0) {
      step.devices[span.replica] = span.device;
    }
  }
  std::vector<DataParallelStep> steps;
  for (auto& [number, step] : found) {
    if (!step.devices.empty() && step.end > step.begin) steps.push_back(std::move(step));
  }
  return steps;
}

}  // namespace

Figure data_parallel_figure(const std::vector<TraceSpan>& spans, std::int64_t wanted) {
  const std::vector<DataParallelStep> steps = steps_of(spans);
  std::vector<StepLength> lengths;
  for (const DataParallelStep& step : steps) {
    lengths.push_back({step.step, step.end - step.begin});
  }
  const DataParallelStep& step = steps[choose_step(lengths, wanted)];
  const double length = step.end - step.begin;

  Panel panel{concat("Forward and backward: ", milliseconds(length))};
  panel.rows.push_back({"caller"});
  double idle = 0;
  for (const auto& [replica, device] : step.devices) {
    Row row{device};
    for (const TraceSpan* span : step.spans) {
      if (span->device == device) row.bars.push_back(bar_of(*span, step.begin));
    }
    const double idle_here = 1 - covered(row.bars) / length;
    idle += idle_here;
    row.note = "idle " + percent(idle_here);
    panel.rows.push_back(std::move(row));
  }
  // What is of no device is the caller's own, where the steps are named; backward begins there.
  const auto of_engine = [](const TraceSpan* span) {
    return span->category == "parallel" && span->device.empty();
  };
  const auto caller = std::ranges::find_if(step.spans, of_engine);
  for (const TraceSpan* span : step.spans) {
    const bool backward = span->category == "phase" && span->name == "backward" &&
                          caller != step.spans.end() && span->thread == (*caller)->thread;
    if (of_engine(span) || backward) panel.rows[0].bars.push_back(bar_of(*span, step.begin));
  }

  Figure figure{
      concat("Step ", step.step, " of DataParallel on ", step.devices.size(), " devices"),
      {concat("Forward and backward take ", milliseconds(length), ", in which the devices idle ",
              percent(idle / static_cast<double>(step.devices.size())), " of the time.")}};
  for (const Shade& shade : kShades) {
    const auto drawn = [&](const TraceSpan* span) { return &shade_of(*span) == &shade; };
    if (std::ranges::any_of(step.spans, drawn)) figure.legend.push_back({shade.name, shade.color});
  }
  figure.panels = {std::move(panel)};
  return figure;
}

}  // namespace weft::timeline
