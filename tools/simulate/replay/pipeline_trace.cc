// Reads the steps of a pipeline out of a trace.
#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/tools/simulate/cost_terms.h"
#include "weft/tools/simulate/median.h"
#include "weft/tools/simulate/replay/pipeline.h"

namespace weft::simulator {
namespace {

using parallel::Action;
using Kind = Action::Kind;

constexpr std::pair<const char*, Kind> kActions[] = {{"forward", Kind::forward},
                                                     {"backward", Kind::backward},
                                                     {"backward_input", Kind::backward_input},
                                                     {"backward_weight", Kind::backward_weight},
                                                     {"recompute", Kind::recompute}};

struct TimedAction {
  Action action;
  double begin, end;
};

// What one device of a rank did, in the order of the beginnings.
struct PlaceSpans {
  std::vector<TimedAction> actions;
  std::vector<TracedSpan> waits;
};

// Names a message: what a stage sends after F, or after B or I.
using MessageKey = std::tuple<bool, int, int>;  // forward, stage, micro-batch

// A message in its parts: the first one describes the tensors, then their values follow.
struct Message {
  double bytes = 0, values = 0, first = std::numeric_limits<double>::infinity(), first_bytes = 0;

  void add(const TracedSpan& span) {
    const double more = std::max(0.0, span.bytes);
    if (span.begin < first) first = span.begin, first_bytes = more;
    bytes += more;
    values = bytes > first_bytes ? bytes - first_bytes : bytes;
  }
};

struct StepSpans {
  std::map<std::pair<int, std::string>, PlaceSpans> places;  // by rank and device
  std::map<int, double> begins, ends;  // by rank: of the step, of the optimizer
  std::map<MessageKey, Message> messages;
};

// The message that the end of `module` names: ">F0.3" is what stage 0 sends after F of micro-batch
// 3.
std::optional<MessageKey> sent_in(const std::string& module) {
  const std::size_t at = module.rfind('>');
  if (at == std::string::npos || at + 2 >= module.size()) return {};
  int stage = 0, micro_batch = 0;
  const char* const end = module.data() + module.size();
  const auto [dot, error] = std::from_chars(module.data() + at + 2, end, stage);
  if (error != std::errc() || dot == end || *dot != '.') return {};
  const auto [stop, wrong] = std::from_chars(dot + 1, end, micro_batch);
  if (wrong != std::errc() || stop != end) return {};
  return MessageKey{module[at + 1] == 'F', stage, micro_batch};
}

void take(const TracedSpan& span, std::map<int, StepSpans>& steps) {
  if (span.step < 0) return;
  const auto step = [&]() -> StepSpans& { return steps[static_cast<int>(span.step)]; };
  if (span.category == "optim" && span.name == "step") {
    double& end = step().ends[span.rank];
    end = std::max(end, span.end);
  }
  if (span.category == "comm") {
    if (const auto sent = sent_in(span.module)) {
      step().messages[*sent].add(span);
    }
  }
  if (span.category != "pipeline") return;
  if (span.name == "step") step().begins.emplace(span.rank, span.begin);
  PlaceSpans& place = step().places[{span.rank, span.device}];
  if (span.name == "wait") place.waits.push_back(span);
  for (const auto& [name, kind] : kActions) {
    if (span.name != name) continue;
    WEFT_CHECK(0 <= span.stage && span.stage < parallel::kMostStages && 0 <= span.micro_batch &&
                   span.micro_batch < parallel::kMostMicroBatches,
               Io, kOp, "a span ", name, " of its pipeline has no stage or no micro-batch");
    place.actions.push_back(
        {{kind, static_cast<int>(span.stage), static_cast<int>(span.micro_batch)},
         span.begin,
         span.end});
  }
}

// Places in the order of their first stages.
std::vector<std::pair<int, const PlaceSpans*>> places_of(const StepSpans& step) {
  std::vector<std::pair<int, const PlaceSpans*>> places;
  for (const auto& [where, place] : step.places) {
    if (!place.actions.empty()) places.emplace_back(where.first, &place);
  }
  std::ranges::sort(places, {}, [](const auto& place) {
    return std::ranges::min(place.second->actions, {},
                            [](const TimedAction& timed) { return timed.action.stage; })
        .action.stage;
  });
  return places;
}

parallel::Schedule schedule_of(const StepSpans& step) {
  parallel::Schedule schedule{.name = "traced", .stages = 0, .micro_batches = 0, .devices = {}};
  for (const auto& [rank, place] : places_of(step)) {
    auto& list = schedule.devices.emplace_back();
    for (const TimedAction& timed : place->actions) {
      list.push_back(timed.action);
      schedule.stages = std::max(schedule.stages, timed.action.stage + 1);
      schedule.micro_batches = std::max(schedule.micro_batches, timed.action.micro_batch + 1);
    }
  }
  return schedule;
}

// What is wrong with the schedule; empty if nothing is.
std::string fault_of(const parallel::Schedule& schedule) {
  try {
    parallel::check(schedule);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

PipelineStep read_step(int number, const StepSpans& spans, const parallel::Schedule& schedule) {
  PipelineStep step{.number = number};
  const auto stages = static_cast<std::size_t>(schedule.stages);
  double begin = std::numeric_limits<double>::infinity(), last = 0, end = 0;
  for (const auto& [rank, when] : spans.begins) begin = std::min(begin, when);
  for (const auto& [rank, when] : spans.ends) end = std::max(end, when);
  const std::vector<double> zeros(stages);
  step.micro_batches.assign(static_cast<std::size_t>(schedule.micro_batches),
                            {zeros, zeros, zeros});
  std::set<std::pair<int, int>> recomputed;  // micro-batch, stage
  for (const auto& list : schedule.devices) {
    for (const Action& action : list) {
      if (action.kind == Kind::recompute) recomputed.emplace(action.micro_batch, action.stage);
    }
  }
  std::map<MessageKey, double> made;
  struct Awaited {
    MessageKey key;
    double asked, taken;
  };
  std::vector<Awaited> awaited;
  for (const auto& [rank, place] : places_of(spans)) {
    const TimedAction& first = place->actions.front();
    const bool needs_others = first.action.stage > 0;
    step.begin.push_back(needs_others ? spans.begins.at(rank) - begin : first.begin - begin);
    double free = first.begin;
    auto wait = place->waits.begin();
    for (const auto& [action, from, to] : place->actions) {
      // Time between two actions belongs to the second one, as that for sending, but not waiting.
      std::optional<double> asked;
      for (; wait != place->waits.end() && wait->begin <= from; ++wait) {
        free = std::max(free, std::min(wait->end, from));
        if (!asked) asked = wait->begin;
      }
      auto& of = step.micro_batches[static_cast<std::size_t>(action.micro_batch)];
      const bool forward = action.kind == Kind::forward || action.kind == Kind::recompute;
      if (asked) {
        const int of_stage = action.stage + (forward ? -1 : 1);
        awaited.push_back({{forward, of_stage, action.micro_batch}, *asked, from});
      }
      const bool twice = forward && recomputed.contains({action.micro_batch, action.stage});
      std::vector<double>& list = forward                                ? of.forward
                                  : action.kind == Kind::backward_weight ? of.backward_weight
                                                                         : of.backward_input;
      list[static_cast<std::size_t>(action.stage)] +=
          std::max(0.0, to - std::min(free, from)) / (twice ? 2 : 1);
      free = to;
      last = std::max(last, to);
      if (action.kind == Kind::forward) made[{true, action.stage, action.micro_batch}] = to;
      if (action.kind == Kind::backward || action.kind == Kind::backward_input) {
        made[{false, action.stage, action.micro_batch}] = to;
      }
    }
  }
  // The time from the end of an action until the receiver goes on with its result. Only messages
  // for which the receiver was already waiting show it: others may have come long before they were
  // needed.
  std::vector<double> travelled;
  for (const auto& [key, asked, taken] : awaited) {
    const auto found = made.find(key);
    if (found == made.end() || asked > found->second) continue;
    travelled.push_back(std::max(0.0, taken - found->second));
  }
  if (!travelled.empty()) step.transfer = median(std::move(travelled));
  step.seconds = end - begin;
  step.tail = std::max(0.0, end - last);
  return step;
}

// What each stage sends to the next one: the bytes of a micro-batch's message or, with `of_all`, of
// the values of all micro-batches.
std::vector<double> bytes_of(const StepSpans& step, int stages, bool of_all) {
  std::vector<double> bytes(static_cast<std::size_t>(stages));
  for (const auto& [key, message] : step.messages) {
    const auto& [forward, stage, micro_batch] = key;
    if (!forward || stage < 0 || stage >= stages) continue;
    double& own = bytes[static_cast<std::size_t>(stage)];
    own = of_all ? own + message.values : std::max(own, message.bytes);
  }
  return bytes;
}

}  // namespace

parallel::Recompute recompute_of(const parallel::Schedule& schedule) {
  std::set<int> recomputed;
  for (const auto& list : schedule.devices) {
    for (const Action& action : list) {
      if (action.kind == Kind::recompute) recomputed.insert(action.micro_batch);
    }
  }
  if (recomputed.empty()) return parallel::Recompute::never;
  const bool all = std::ssize(recomputed) == schedule.micro_batches;
  return all ? parallel::Recompute::always : parallel::Recompute::except_last;
}

std::string name_of(const parallel::Schedule& schedule) {
  const parallel::Recompute recompute = recompute_of(schedule);
  const int devices = static_cast<int>(schedule.devices.size());
  for (const std::string& name : parallel::schedule_names()) {
    if (name != "interleaved" && parallel::stages_per_device(name) * devices != schedule.stages) {
      continue;
    }
    try {
      const int given = name == "interleaved" ? devices : 0;
      const auto made =
          parallel::make_schedule(name, schedule.stages, schedule.micro_batches, recompute, given);
      if (made.devices == schedule.devices) return name;
    } catch (const Error&) {
      // It has no schedule of this size.
    }
  }
  return {};
}

PipelineTrace pipeline_trace(const TracedSpans& traced) {
  const bool is_cut = std::ranges::any_of(traced.spans, [](const TracedSpan& span) {
    return span.category == "fully_shard" && span.name == "reduce-scatter";
  });
  WEFT_CHECK(!is_cut, Io, kOp,
             "its pipeline's stages are cut by fully_shard: a replay knows only one of the two");
  std::map<int, StepSpans> found;
  for (const TracedSpan& span : traced.spans) take(span, found);
  PipelineTrace trace;
  trace.has_thin_links = traced.has_thin_links;
  std::vector<std::pair<const std::pair<const int, StepSpans>*, parallel::Schedule>> whole;
  std::string fault = "it has no action of one with its optimizer";
  for (auto& [number, step] : found) {
    for (auto& [where, place] : step.places) {
      std::ranges::sort(place.actions, {}, &TimedAction::begin);
      std::ranges::sort(place.waits, {}, &TracedSpan::begin);
    }
  }
  for (const auto& step : found) {
    const auto places = places_of(step.second);
    std::set<int> ranks;
    for (const auto& [rank, place] : places) ranks.insert(rank);
    const auto has_all = [&](const std::map<int, double>& times) {
      return std::ranges::all_of(ranks, [&](int rank) { return times.contains(rank); });
    };
    if (places.empty() || !has_all(step.second.begins) || !has_all(step.second.ends)) continue;
    parallel::Schedule schedule = schedule_of(step.second);
    fault = fault_of(schedule);
    if (fault.empty()) whole.emplace_back(&step, std::move(schedule));
  }
  WEFT_CHECK(!whole.empty(), Io, kOp,
             "no step of it is a whole step of one pipeline, which a replay needs: ", fault);
  trace.schedule = whole.back().second;
  const StepSpans& last = whole.back().first->second;
  for (const auto& [rank, place] : places_of(last)) trace.rank_of_place.push_back(rank);
  trace.over_ranks = std::ranges::count(trace.rank_of_place, trace.rank_of_place.front()) <
                     std::ssize(trace.rank_of_place);
  WEFT_CHECK(trace.places() > 1, Io, kOp, "its pipeline is on one device; record two or more");
  trace.recompute = recompute_of(trace.schedule);
  trace.known_as = name_of(trace.schedule);
  for (const auto& list : trace.schedule.devices) {
    trace.splits_backward |=
        std::ranges::find(list, Kind::backward_weight, &Action::kind) != list.end();
  }
  trace.bytes = bytes_of(last, trace.schedule.stages, false);
  trace.batch_bytes = bytes_of(last, trace.schedule.stages, true);
  for (const auto& [step, schedule] : whole) {
    if (schedule == trace.schedule) {
      trace.steps.push_back(read_step(step->first, step->second, schedule));
    }
  }
  return trace;
}

}  // namespace weft::simulator
