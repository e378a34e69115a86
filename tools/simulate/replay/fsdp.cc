#include "weft/tools/simulate/replay/fsdp.h"

#include <algorithm>
#include <cstddef>

#include "weft/parallel/step_schedule.h"
#include "weft/tools/simulate/cost_terms.h"
#include "weft/tools/simulate/replay/parts.h"
#include "weft/tools/simulate/replay/shared_time.h"

namespace weft::simulator {
namespace {

using parallel::StepAction;

// The seconds of a gather or a reduce-scatter: half of a ring's all-reduce. `bytes`: of all ranks'
// parts together.
double ring_seconds(const Link& link, int ranks, double bytes) {
  return (ranks - 1) * link.latency + link.transfer(bytes) * (ranks - 1) / ranks;
}

// The time of a message, and for which share of it a core, or the thin link, is busy.
struct Message {
  double seconds = 0;
  MessageNeeds needs = {};
};

Message message_of(const FsdpTrace& trace, const Setting& setting, bool gather, double recorded,
                   const FsdpTrace::Unit& unit) {
  const Link& link = gather ? trace.gather_link : trace.reduce_link;
  const int ranks = setting.ranks > 0 ? setting.ranks : trace.ranks();
  const double bytes = gather ? unit.gather_bytes : unit.reduce_bytes;
  const double sent = gather ? unit.sent_bytes(setting) : bytes;
  const double before = ring_seconds(link, trace.ranks(), bytes);
  double seconds = ring_seconds(link_of(link, setting), ranks, sent);
  if (!setting.has_own_links()) seconds = before > 0 ? recorded * seconds / before : recorded;
  double thin = 0;
  if (setting.thin_link) {
    const double over = sent / ranks / setting.thin_link->bytes_per_second;
    if (gather && sent <= kDirectBytes) {
      thin = over;
    } else if (is_in_ring(*setting.thin_link, ranks)) {
      thin = (ranks - 1) * over;
    }
  }
  const double all = seconds + thin;
  if (!(all > 0)) return {};
  const bool computes = trace.messages_compute && !setting.has_own_links();
  return {all, {.core = computes ? seconds / all : 0, .link = thin / all}};
}

ReplayedStep replay_step(const FsdpTrace& trace, const FsdpStep& step, const Setting& setting,
                         const parallel::StepSchedule& schedule) {
  const bool reshard = setting.reshard.value_or(trace.reshard);
  const std::size_t units = trace.units.size();
  // The size of a rank's part under the setting, relative to the recorded one.
  const double parts = setting.ranks > 0 ? static_cast<double>(trace.ranks()) / setting.ranks : 1;
  std::vector<parallel::StepCosts> costs;
  for (std::size_t r = 0; r < step.ranks.size(); ++r) {
    const FsdpStep::Rank& rank = step.ranks[r];
    const bool slow = static_cast<int>(r) == setting.slow_rank;
    const double times = slow ? setting.slow_times : 1;
    parallel::StepCosts& own = costs.emplace_back();
    own.begin = rank.late + (slow ? setting.slow_by : 0);
    own.optimizer = rank.optimizer * times * parts;
    for (std::size_t v = 0; v < rank.forward.size(); ++v) {
      const double copy = v < units ? rank.copy[v] : 0;
      own.forward.push_back((rank.forward[v] + copy) * times);
      own.backward.push_back((rank.backward[v] + (reshard && v > 0 ? copy : 0)) * times);
    }
  }
  std::vector<MessageNeeds> needs;
  for (const parallel::StepCheck::Turn& turn : parallel::check(schedule).order) {
    if (turn.action.phase != StepAction::Phase::start || turn.rank != 0) continue;
    const auto unit = static_cast<std::size_t>(turn.action.unit);
    const bool gather = turn.action.kind == StepAction::Kind::unshard;
    const Message message = message_of(
        trace, setting, gather, gather ? step.gather[unit] : step.reduce[unit], trace.units[unit]);
    const auto number = static_cast<std::size_t>(turn.message);
    if (number >= needs.size()) {
      needs.resize(number + 1);
      costs.front().messages.resize(number + 1);
    }
    needs[number] = message.needs;
    costs.front().messages[number] = message.seconds;
  }
  // If the setting has more ranks, the others are taken to have the same times as these.
  const auto [timeline, settled] = simulate_shared(schedule, costs, needs);
  double waiting = 0;
  for (const double each : timeline.waiting) waiting += each;
  return {timeline.end, waiting / static_cast<double>(timeline.waiting.size()), settled};
}

}  // namespace

std::vector<double> FsdpTrace::step_seconds() const {
  std::vector<double> all;
  for (const FsdpStep& step : steps) all.push_back(step.seconds);
  return all;
}

double FsdpTrace::gathered_bytes(const Setting& setting) const {
  double bytes = 0;
  for (const Unit& unit : units) bytes += unit.sent_bytes(setting);
  return bytes;
}

bool FsdpTrace::has_bf16() const { return std::ranges::all_of(units, &Unit::bf16); }

std::string FsdpTrace::what() const {
  return concat("FSDP on ", ranks(), " ranks, ", simulator::counted(units.size(), "unit"), " of ",
                mb(gathered_bytes({})), ", reshard_after_forward ", reshard ? "true" : "false",
                has_bf16() ? ", already bf16" : "");
}

std::size_t FsdpTrace::gathers(const Setting& setting) const {
  return setting.reshard.value_or(reshard) ? 2 * units.size() - 1 : units.size();
}

std::string FsdpTrace::model(const Setting& setting) const {
  // Rounded, since the padding of the parts depends on the number of ranks.
  const double mega = gathered_bytes(setting) / 1e6;
  return concat(setting.ranks > 0 ? setting.ranks : ranks(), " ranks and ",
                simulator::counted(units.size(), "unit"), " of ", number(mega, "%.3g"), " MB with ",
                simulator::counted(gathers(setting), "gather"));
}

Replayed FsdpTrace::replay(const Setting& setting) const {
  check_bf16(setting, has_bf16());
  const bool cut = setting.reshard.value_or(reshard);
  const parallel::StepSchedule schedule =
      parallel::fsdp_step(static_cast<int>(units.size()), ranks(), cut);
  std::vector<ReplayedStep> all;
  for (const FsdpStep& step : steps) all.push_back(replay_step(*this, step, setting, schedule));
  return replayed(setting, static_cast<int>(gathers(setting)), all);
}

std::vector<std::string> FsdpTrace::usual_settings() const {
  std::vector<std::string> texts = {concat("reshard=", reshard ? "false" : "true")};
  if (!has_bf16()) texts.push_back("bf16");
  for (const int times : {2, 4}) texts.push_back(concat("ranks=", times * ranks()));
  for (const char* rate : {"10GB/s", "1GB/s", "100MB/s"}) {
    texts.push_back(concat("bandwidth=", rate));
  }
  return texts;
}

std::vector<train::LogLogChart> FsdpTrace::charts() const {
  std::vector<Setting> lines = {parse("reshard=true"), parse("reshard=false")};
  if (!has_bf16()) lines.push_back(parse("reshard=true,bf16"));
  return {over_bandwidth(lines), over_ranks(lines)};
}

}  // namespace weft::simulator
