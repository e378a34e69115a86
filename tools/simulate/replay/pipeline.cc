#include "weft/tools/simulate/replay/pipeline.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <set>

#include "weft/core/base/error.h"
#include "weft/parallel/simulate.h"
#include "weft/tools/simulate/cost_terms.h"
#include "weft/tools/simulate/replay/parts.h"

namespace weft::simulator {
namespace {

// What a setting makes of the recorded schedule.
struct Plan {
  parallel::Schedule schedule;
  std::vector<int> place_of_stage;
  bool splits_backward = false;
  bool extrapolated = false;
};

bool is_split(const std::string& name) {
  return name == "zb-h1" || name == "zb-v" || name == "dualpipev";
}

Plan plan_of(const PipelineTrace& trace, const Setting& setting) {
  Plan plan{.schedule = trace.schedule, .splits_backward = trace.splits_backward};
  plan.extrapolated = setting.is_extrapolated();
  if (!setting.schedule.empty() || setting.micro_batches > 0) {
    const std::string name = setting.schedule.empty() ? trace.known_as : setting.schedule;
    WEFT_CHECK(!name.empty(), InvalidArgument, kOp, "got the setting '", setting.text,
               "', but ./weft schedule does not know the recorded order; add schedule=1f1b, or "
               "another name");
    const int micro_batches =
        setting.micro_batches > 0 ? setting.micro_batches : trace.schedule.micro_batches;
    const int places = trace.places(), recorded = trace.schedule.stages;
    int stages = places * parallel::stages_per_device(name);
    if (name == "interleaved") stages = recorded > places ? recorded : 2 * places;
    WEFT_CHECK(stages % recorded == 0 || recorded % stages == 0, InvalidArgument, kOp,
               "got the setting '", setting.text, "', which needs ", stages,
               " stages, and the trace has ", recorded);
    plan.schedule = parallel::make_schedule(name, stages, micro_batches, trace.recompute,
                                            name == "interleaved" ? places : 0);
    plan.splits_backward = is_split(name);
    plan.extrapolated |= stages > recorded || (plan.splits_backward && !trace.splits_backward);
  }
  plan.place_of_stage = parallel::check(plan.schedule).device_of_stage;
  return plan;
}

// The times of the wanted number of stages: neighbours are added up, or each stage is cut into
// equal parts.
std::vector<double> for_stages(const std::vector<double>& recorded, std::size_t stages) {
  std::vector<double> costs(stages);
  const std::size_t all = recorded.size();
  for (std::size_t s = 0; s < std::max(all, stages); ++s) {
    const double part = stages > all ? static_cast<double>(all) / static_cast<double>(stages) : 1;
    costs[s * stages / std::max(all, stages)] += recorded[s * all / std::max(all, stages)] * part;
  }
  return costs;
}

// The bytes between the stages of the schedule. Where stages were put together, those behind the
// last of them. Inside a stage that was cut, the same as behind it.
std::vector<double> bytes_for(const std::vector<double>& recorded, std::size_t stages) {
  std::vector<double> bytes;
  const std::size_t all = recorded.size();
  for (std::size_t s = 0; s < stages; ++s) {
    const std::size_t from = stages > all ? s * all / stages : (s + 1) * all / stages - 1;
    bytes.push_back(from + 1 < all || all == 1 ? recorded[from] : recorded[all - 2]);
  }
  return bytes;
}

using MicroBatch = parallel::StageCosts::MicroBatch;

// The costs of the plan's micro-batches: those of the step or, for another number of them, the same
// share for each.
std::vector<MicroBatch> micro_batches_of(const PipelineTrace& trace, const PipelineStep& step,
                                         const Plan& plan) {
  std::vector<MicroBatch> recorded = step.micro_batches;
  const auto count = static_cast<std::size_t>(plan.schedule.micro_batches);
  if (recorded.size() != count) {
    MicroBatch share = recorded[0];
    for (std::vector<double> MicroBatch::* const list :
         {&MicroBatch::forward, &MicroBatch::backward_input, &MicroBatch::backward_weight}) {
      for (std::size_t s = 0; s < (share.*list).size(); ++s) {
        double sum = 0;
        for (const MicroBatch& each : recorded) sum += (each.*list)[s];
        (share.*list)[s] = sum / static_cast<double>(count);
      }
    }
    recorded.assign(count, share);
  }
  const auto stages = static_cast<std::size_t>(plan.schedule.stages);
  std::vector<MicroBatch> all;
  for (const MicroBatch& each : recorded) {
    MicroBatch& costs = all.emplace_back();
    costs.forward = for_stages(each.forward, stages);
    costs.backward_input = for_stages(each.backward_input, stages);
    costs.backward_weight = for_stages(each.backward_weight, stages);
    if (!plan.splits_backward || trace.splits_backward) continue;
    for (std::size_t s = 0; s < stages; ++s) {
      costs.backward_weight[s] = costs.backward_input[s] /= 2;
    }
  }
  return all;
}

// Whether ./weft schedule has a schedule for the setting with the trace's stages.
bool can_plan(const PipelineTrace& trace, const Setting& setting) {
  try {
    plan_of(trace, setting);
  } catch (const Error&) {
    return false;
  }
  return true;
}

ReplayedStep replay_step(const PipelineTrace& trace, const PipelineStep& step,
                         const Setting& setting, const Plan& plan) {
  const auto stages = static_cast<std::size_t>(plan.schedule.stages);
  parallel::StageCosts costs{.transfer = step.transfer, .begin = step.begin};
  costs.micro_batches = micro_batches_of(trace, step, plan);
  if (setting.slow_rank >= 0) {
    const auto is_slow = [&](std::size_t place) {
      const int number = trace.over_ranks ? trace.rank_of_place[place] : static_cast<int>(place);
      return number == setting.slow_rank;
    };
    for (std::size_t place = 0; place < costs.begin.size(); ++place) {
      if (is_slow(place)) costs.begin[place] += setting.slow_by;
    }
    for (std::size_t s = 0; s < stages; ++s) {
      if (!is_slow(static_cast<std::size_t>(plan.place_of_stage[s]))) continue;
      for (MicroBatch& each : costs.micro_batches) {
        each.forward[s] *= setting.slow_times;
        each.backward_input[s] *= setting.slow_times;
        each.backward_weight[s] *= setting.slow_times;
      }
    }
  }
  if (setting.latency >= 0) costs.transfer = setting.latency;
  if (setting.bytes_per_second >= 0 && setting.latency < 0)
    costs.transfer = 0;  // all of it is the link's time
  if (setting.bytes_per_second >= 0 || setting.thin_link) costs.link.resize(stages);
  const std::vector<double> bytes = bytes_for(trace.bytes, stages);
  const double rows = static_cast<double>(trace.schedule.micro_batches) /
                      static_cast<double>(plan.schedule.micro_batches);  // 1: as recorded
  for (std::size_t s = 0; s + 1 < costs.link.size(); ++s) {
    const auto rank = [&](std::size_t stage) {
      return trace.rank_of_place[static_cast<std::size_t>(plan.place_of_stage[stage])];
    };
    if (setting.bytes_per_second >= 0) costs.link[s] = rows * bytes[s] / setting.bytes_per_second;
    if (setting.thin_link) {
      const auto& [a, b, rate] = *setting.thin_link;
      const int from = rank(s), to = rank(s + 1);
      if (std::minmax(from, to) == std::minmax(a, b)) costs.link[s] += rows * bytes[s] / rate;
    }
  }
  const parallel::Timeline timeline = parallel::simulate(plan.schedule, costs);
  return {timeline.end + step.tail, timeline.bubble() * timeline.end};
}

}  // namespace

std::vector<double> PipelineTrace::step_seconds() const {
  std::vector<double> all;
  for (const PipelineStep& step : steps) all.push_back(step.seconds);
  return all;
}

int PipelineTrace::ranks() const {
  if (!over_ranks) return places();
  return static_cast<int>(std::set(rank_of_place.begin(), rank_of_place.end()).size());
}

std::string PipelineTrace::what() const { return model({}); }

std::string PipelineTrace::model(const Setting& setting) const {
  const parallel::Schedule run = plan_of(*this, setting).schedule;
  const std::string name = name_of(run);
  return concat("a pipeline on ", ranks(), over_ranks ? " ranks, " : " devices, ",
                name.empty() ? "a schedule of its own" : name, ", ", run.stages, " stages, ",
                simulator::counted(static_cast<std::size_t>(run.micro_batches), "micro-batch"),
                ", recomputed: ", parallel::to_string(recompute_of(run)));
}

std::string PipelineTrace::fault_of(const RecordedSteps& run, const Setting& setting) const {
  std::string fault = RecordedSteps::fault_of(run, setting);
  if (!fault.empty()) return fault;
  const auto& other = dynamic_cast<const PipelineTrace&>(run);  // as its model() says
  const std::size_t own = batch_bytes.size(), its = other.batch_bytes.size();
  const std::size_t both = std::min(own, its);  // stages; a run with more has cut these
  for (std::size_t s = 1; s < both; ++s) {
    const double expected = batch_bytes[s * own / both - 1];
    const double got = other.batch_bytes[s * its / both - 1];
    if (expected > 0 && got > 0 && got != expected) {  // 0: within a device
      return concat("sends ", got, " bytes of a batch behind stage ", s * its / both - 1,
                    ", expected ", expected);
    }
  }
  return {};
}

Replayed PipelineTrace::replay(const Setting& setting) const {
  const Plan plan = plan_of(*this, setting);
  WEFT_CHECK(over_ranks || (!setting.thin_link && !setting.has_own_links()), InvalidArgument, kOp,
             "got the setting '", setting.text,
             "' for a pipeline within one process, which has no links");
  std::vector<ReplayedStep> all;
  for (const PipelineStep& step : steps) all.push_back(replay_step(*this, step, setting, plan));
  Replayed row = replayed(setting, plan.schedule.micro_batches, all);
  row.extrapolated = plan.extrapolated;
  return row;
}

std::vector<std::string> PipelineTrace::usual_settings() const {
  std::vector<std::string> texts;
  for (const char* name : {"gpipe", "1f1b", "interleaved", "zb-h1"}) {
    texts.push_back(concat("schedule=", name));
  }
  const std::string name = known_as.empty() ? "schedule=1f1b," : "";
  for (const int m : {2 * schedule.micro_batches, 4 * schedule.micro_batches}) {
    if (m <= parallel::kMostMicroBatches) texts.push_back(concat(name, "micro-batches=", m));
  }
  std::erase_if(texts, [&](const std::string& text) { return !can_plan(*this, parse(text)); });
  if (over_ranks) {
    for (const char* rate : {"1GB/s", "100MB/s"}) texts.push_back(concat("bandwidth=", rate));
  }
  return texts;
}

std::vector<train::LogLogChart> PipelineTrace::charts() const {
  train::LogLogChart chunks{concat("Extrapolated: a pipeline on ", ranks(),
                                   over_ranks ? " ranks" : " devices", ", other micro-batches"),
                            "micro-batches of the same batch",
                            "ms of a step",
                            {}};
  std::vector<Setting> lines;
  for (const char* text : {"schedule=gpipe", "schedule=1f1b", "schedule=zb-h1"}) {
    const Setting line = parse(text);
    if (!can_plan(*this, line)) continue;
    lines.push_back(line);
    std::vector<double> counts;
    std::vector<Setting> settings;
    for (int m = std::min(places(), schedule.micro_batches); m <= 8 * schedule.micro_batches;
         m *= 2) {
      Setting setting = line;
      setting.micro_batches = m;
      if (!can_plan(*this, setting)) continue;
      counts.push_back(m);
      settings.push_back(setting);
    }
    chunks.curves.push_back(curve(line.text, counts, settings));
  }
  if (lines.empty() && over_ranks) return {over_bandwidth({parse("recorded")})};
  WEFT_CHECK(!lines.empty(), InvalidArgument, kOp,
             "nothing can be drawn: ./weft schedule has none of as many stages");
  if (!over_ranks) return {chunks};
  return {chunks, over_bandwidth(lines)};
}

}  // namespace weft::simulator
