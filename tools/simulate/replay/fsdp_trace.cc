// Reads the steps of fully_shard out of a trace.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/parallel/step_schedule.h"
#include "weft/tools/simulate/cost_terms.h"
#include "weft/tools/simulate/median.h"
#include "weft/tools/simulate/replay/fsdp.h"
#include "weft/tools/simulate/replay/parts.h"
#include "weft/tools/simulate/replay/shared_time.h"
#include "weft/tools/simulate/replay/traced_ranks.h"

namespace weft::simulator {
namespace {

using parallel::StepAction;
using Kind = StepAction::Kind;
using Phase = StepAction::Phase;

// A rank's spans of a step, in the order in which they begin.
struct RankSpans : TracedTimes {
  std::vector<TracedSpan> moments, waits, gathers, reductions, others;  // others: all-reduces

  bool is_whole() const { return TracedTimes::is_whole() && !moments.empty(); }
};

using Spans = std::map<int, std::map<int, RankSpans>>;  // by step and rank

void take(const TracedSpan& span, Spans& steps) {
  if (span.step < 0) return;
  RankSpans& rank = steps[static_cast<int>(span.step)][span.rank];
  const std::string &category = span.category, &name = span.name;
  rank.take(span);
  if (category == "fully_shard") (name == "gather" ? rank.moments : rank.waits).push_back(span);
  if (category == "comm" && name == "all_gather") rank.gathers.push_back(span);
  if (category == "comm" && name == "reduce_scatter") rank.reductions.push_back(span);
  if (category == "comm" && name == "all_reduce") rank.others.push_back(span);
}

// Leaves out what began before forward, which belongs to the loading of data, and sorts the rest.
void put_in_order(RankSpans& rank) {
  for (auto* const spans : {&rank.moments, &rank.waits, &rank.gathers, &rank.reductions}) {
    std::erase_if(*spans, [&](const TracedSpan& span) { return span.begin < rank.forward; });
    std::ranges::sort(*spans, {}, &TracedSpan::begin);
  }
}

std::vector<std::string> names_of(const std::vector<TracedSpan>& spans) {
  std::vector<std::string> names;
  for (const TracedSpan& span : spans) names.push_back(span.module);
  return names;
}

// The units of the messages of this kind, in the order in which they are started.
std::vector<std::size_t> started(const parallel::StepSchedule& schedule, Kind kind) {
  std::vector<std::size_t> units;
  for (const StepAction& action : schedule.ranks.front()) {
    if (action.phase == Phase::start && action.kind == kind) {
      units.push_back(static_cast<std::size_t>(action.unit));
    }
  }
  return units;
}

// Divides a rank's time in a step among the actions of the schedule.
class RankReader {
 public:
  struct Piece {
    double begin, end;
    double* of;  // the time to which it belongs
  };

  RankReader(const parallel::StepSchedule& schedule, const RankSpans& spans)
      : schedule_(schedule), spans_(spans) {
    const auto units = static_cast<std::size_t>(schedule.units);
    const std::size_t visits = units > 1 ? units + 1 : 1;
    rank.forward.resize(visits);
    rank.backward.resize(visits);
    rank.copy.resize(units);
  }

  // Whether the rank did what the schedule says. If several units compute between two waits, their
  // time counts for the unit with the largest number: the last of them in forward, the first in
  // backward.
  bool read() {
    now_ = spans_.forward;
    last_ = &rank.forward[0];
    std::vector<std::size_t> tape;
    bool in_backward = false;
    std::size_t visits = 0, next = 0, moments = 0, gathers = 0, reductions = 0;
    const std::vector<StepAction>& actions = schedule_.ranks.front();
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const StepAction& action = actions[i];
      const auto unit = static_cast<std::size_t>(action.unit);
      const bool messages = action.kind == Kind::unshard || action.kind == Kind::reduce;
      if (action.phase == Phase::run && action.kind == Kind::forward) {
        since_.emplace_back(unit, &rank.forward[visits]);
        tape.push_back(visits++);
      } else if (action.phase == Phase::run && action.kind == Kind::backward) {
        if (!std::exchange(in_backward, true)) {
          close(spans_.backward);
          now_ = std::max(now_, spans_.backward);
        }
        since_.emplace_back(unit, &rank.backward[tape.back()]);
        tape.pop_back();
      } else if (action.kind == Kind::unshard && action.phase == Phase::start) {
        const bool ahead = actions[i + 1].kind != Kind::unshard;
        if (spans_.moments[moments++].ahead != ahead) return false;
      } else if (messages && (action.phase == Phase::wait || action.kind == Kind::reduce)) {
        if (next == spans_.waits.size()) return false;
        const TracedSpan& span = spans_.waits[next++];
        const bool starts = action.phase == Phase::start;
        const char* const name = starts                         ? "reduce-scatter"
                                 : action.kind == Kind::unshard ? "wait for parameters"
                                                                : "wait for sums";
        if (span.name != name) return false;
        if (starts) {  // until then the message was put together
          close(span.end);
          now_ = span.end;
          continue;
        }
        const bool gather = action.kind == Kind::unshard;
        const double came =
            gather ? spans_.gathers[gathers++].end : spans_.reductions[reductions++].end;
        close(span.begin);
        now_ = std::clamp(came, span.begin, span.end);
        if (gather) {
          pieces.push_back({now_, span.end, &rank.copy[unit]});
          copies_[unit] += 1;
          now_ = span.end;
        }
      }
    }
    if (next != spans_.waits.size()) return false;
    pieces.push_back({now_, spans_.end, &rank.optimizer});
    return true;
  }

  // Gives each action the core's time that its pieces needed, without `lost`, the time of each
  // piece that went to others. For a unit's copies it is the mean.
  void count(const std::vector<double>& lost) {
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      *pieces[i].of += std::max(0.0, pieces[i].end - pieces[i].begin - lost[i]);
    }
    for (const auto& [unit, times] : copies_) rank.copy[unit] /= times;
  }

  FsdpStep::Rank rank;
  std::vector<Piece> pieces;

 private:
  void close(double until) {
    if (!since_.empty()) last_ = std::ranges::max_element(since_)->second;
    since_.clear();
    pieces.push_back({now_, until, last_});
  }

  const parallel::StepSchedule& schedule_;
  const RankSpans& spans_;
  double now_ = 0;
  std::vector<std::pair<std::size_t, double*>> since_;
  double* last_ = nullptr;
  std::map<std::size_t, int> copies_;
};

// Writes the step's units to the trace, and returns the schedule of a step with these units.
parallel::StepSchedule schedule_of(const std::map<int, RankSpans>& ranks, FsdpTrace& trace) {
  const std::vector<TracedSpan>& moments = ranks.begin()->second.moments;
  trace.units.clear();
  for (const TracedSpan& moment : moments) {
    if (std::ranges::find(trace.units, moment.module, &FsdpTrace::Unit::name) ==
        trace.units.end()) {
      trace.units.push_back({moment.module, moment.bytes});
    }
  }
  trace.reshard = trace.units.size() == 1 || moments.size() > trace.units.size();
  return parallel::fsdp_step(static_cast<int>(trace.units.size()), static_cast<int>(ranks.size()),
                             trace.reshard);
}

// When the i-th message of a kind begins: when the last rank is ready for it.
double common_begin(const std::map<int, RankSpans>& ranks,
                    std::vector<TracedSpan> RankSpans::* kind, std::size_t i) {
  double begin = 0;
  for (const auto& [r, rank] : ranks) begin = std::max(begin, (rank.*kind)[i].begin);
  return begin;
}

// The step, if all ranks did what the schedule says.
std::optional<FsdpStep> read_step(int number, const std::map<int, RankSpans>& ranks,
                                  const parallel::StepSchedule& schedule, const FsdpTrace& trace) {
  const auto gathers = started(schedule, Kind::unshard), sums = started(schedule, Kind::reduce);
  std::vector<std::string> expected;
  for (const std::size_t unit : gathers) expected.push_back(trace.units[unit].name);
  double begin = std::numeric_limits<double>::infinity(), end = 0;
  for (const auto& [r, rank] : ranks) {
    if (names_of(rank.moments) != expected || rank.gathers.size() != gathers.size() ||
        rank.reductions.size() != sums.size()) {
      return {};
    }
    begin = std::min(begin, rank.forward);
    end = std::max(end, rank.end);
  }
  FsdpStep step{.number = number, .seconds = end - begin, .ranks = {}, .gather = {}, .reduce = {}};
  // For each message the time of the fastest rank: on the others it had less of the core.
  std::vector<double> gather(gathers.size(), end), reduce(sums.size(), end);
  for (const auto& [r, spans] : ranks) {
    RankReader reader(schedule, spans);
    if (!reader.read()) return {};
    std::vector<SharedTask> tasks;
    for (const auto& [from, to, of] : reader.pieces) tasks.push_back({from, to});
    const std::size_t own = tasks.size();
    for (std::size_t i = 0; i < gathers.size(); ++i) {
      tasks.push_back({common_begin(ranks, &RankSpans::gathers, i), spans.gathers[i].end});
    }
    for (std::size_t i = 0; i < sums.size(); ++i) {
      tasks.push_back({common_begin(ranks, &RankSpans::reductions, i), spans.reductions[i].end});
    }
    std::vector<double> lost(tasks.size());
    if (trace.messages_compute) lost = lost_to_others(tasks);
    reader.count(lost);
    reader.rank.late = spans.forward - begin;
    step.ranks.push_back(std::move(reader.rank));
    for (std::size_t i = own; i < tasks.size(); ++i) {
      const double took = std::max(0.0, tasks[i].end - tasks[i].begin - lost[i]);
      double& least = i - own < gathers.size() ? gather[i - own] : reduce[i - own - gathers.size()];
      least = std::min(least, took);
    }
  }
  step.gather.resize(trace.units.size());
  step.reduce.resize(trace.units.size());
  for (std::size_t i = 0; i < gathers.size(); ++i) {
    step.gather[gathers[i]] +=
        gather[i] / static_cast<double>(std::ranges::count(gathers, gathers[i]));
  }
  for (std::size_t i = 0; i < sums.size(); ++i) step.reduce[sums[i]] = reduce[i];
  return step;
}

// Latency and bandwidth of a ring's step, fitted to the medians of the units' messages.
Link fit_link(const FsdpTrace& trace, std::vector<double> FsdpStep::* times,
              double FsdpTrace::Unit::* bytes) {
  std::vector<TimedMessage> messages;
  for (std::size_t u = 0; u < trace.units.size(); ++u) {
    std::vector<double> seconds;
    for (const FsdpStep& step : trace.steps) seconds.push_back((step.*times)[u]);
    messages.emplace_back(trace.units[u].*bytes, median(seconds));
  }
  const auto [latency, per_byte] = fit(messages);
  const double ranks = trace.ranks();
  return {latency / (ranks - 1), per_byte > 0 ? (ranks - 1) / ranks / per_byte : 0};
}

}  // namespace

FsdpTrace fsdp_trace(const TracedSpans& traced) {
  FsdpTrace trace;
  trace.has_thin_links = traced.has_thin_links;
  trace.messages_compute = !traced.on_cuda;
  Spans steps;
  for (const TracedSpan& span : traced.spans) take(span, steps);
  bool has_moments = false;
  for (auto& [number, ranks] : steps) {
    for (auto& [r, rank] : ranks) {
      has_moments |= !rank.moments.empty();
      put_in_order(rank);
    }
  }
  WEFT_CHECK(has_moments, Io, kOp,
             "it does not say when each unit's parameters were asked for (spans 'gather'), from "
             "which other steps are made: an older weft recorded it; record it again with --trace "
             "FILE");
  const EngineWords words{"fully_shard", "gathers and reduce-scatters",
                          "is none of fully_shard among all ranks: a replay knows only such"};
  const auto whole = whole_steps(traced, steps, words, [](const RankSpans& rank, const RankSpans&) {
    return rank.is_whole();
  });
  // The units are those of the latest step that follows the schedule of fully_shard.
  std::optional<parallel::StepSchedule> schedule;
  for (auto step = whole.rbegin(); step != whole.rend() && !schedule; ++step) {
    schedule = schedule_of((*step)->second, trace);
    if (!read_step((*step)->first, (*step)->second, *schedule, trace)) schedule.reset();
  }
  if (!schedule) schedule = schedule_of(whole.back()->second, trace);
  for (const auto* const step : whole) {
    if (auto read = read_step(step->first, step->second, *schedule, trace)) {
      trace.steps.push_back(std::move(*read));
    }
  }
  WEFT_CHECK(!trace.steps.empty(), Io, kOp,
             "no step of it has the gathers and reduce-scatters of a step of fully_shard that ",
             "./weft schedule ", trace.reshard ? "fsdp" : "zero2", " --units ", trace.units.size(),
             " shows: each block a unit, in the order of forward, and all others in the outermost "
             "one; the first steps of a run learn that order");
  const auto sums = started(*schedule, Kind::reduce);
  const RankSpans& latest = steps.at(trace.steps.back().number).begin()->second;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    trace.units[sums[i]].reduce_bytes = latest.reductions[i].bytes * trace.ranks();
  }
  const auto gathers = started(*schedule, Kind::unshard);
  auto gathered = gathers.begin();
  for (const TracedSpan& wait : latest.waits) {
    if (wait.name != "wait for parameters") continue;
    FsdpTrace::Unit& unit = trace.units[*gathered++];
    unit.bf16 =
        wait.element_size < 0 ? 2 * unit.gather_bytes <= unit.reduce_bytes : wait.element_size == 2;
  }
  trace.gather_link = fit_link(trace, &FsdpStep::gather, &FsdpTrace::Unit::gather_bytes);
  trace.reduce_link = fit_link(trace, &FsdpStep::reduce, &FsdpTrace::Unit::reduce_bytes);
  return trace;
}

}  // namespace weft::simulator
