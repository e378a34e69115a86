// The steps of DDP, ZeRO, fully_shard and parallelize.
#include <algorithm>
#include <cstdint>
#include <iterator>

#include "weft/core/base/error.h"
#include "weft/parallel/schedule_parts.h"
#include "weft/parallel/step_schedule.h"

namespace weft::parallel {
namespace {

using Kind = StepAction::Kind;
using List = std::vector<StepAction>;

StepAction run(Kind kind, int unit) { return {kind, unit}; }
StepAction start(Kind kind, int unit) { return {kind, unit, StepAction::Phase::start}; }
StepAction wait(Kind kind, int unit) { return {kind, unit, StepAction::Phase::wait}; }

// All ranks do the same.
StepSchedule on_all(const char* name, int units, int ranks, List (*list)(int units)) {
  WEFT_CHECK(1 <= units && units <= kMostStages, InvalidArgument, "schedule", name, ": got ", units,
             " units, expected 1 to ", kMostStages);
  WEFT_CHECK(1 <= ranks && ranks <= kMostStages, InvalidArgument, "schedule", name, ": got ", ranks,
             " ranks, expected 1 to ", kMostStages);
  const List actions = list(units);
  WEFT_CHECK(std::ssize(actions) * ranks <= kMostActions, InvalidArgument, "schedule", name, ": ",
             units, " units on ", ranks, " ranks need more than ", kMostActions,
             " actions; take fewer of one of them");
  return {name, units, std::vector<List>(static_cast<std::size_t>(ranks), actions)};
}

List ddp(int units) {
  List list;
  for (int u = 0; u < units; ++u) list.push_back(run(Kind::forward, u));
  for (int u = units - 1; u >= 0; --u) {
    list.push_back(run(Kind::backward, u));
    list.push_back(start(Kind::all_reduce, u));
  }
  for (int u = units - 1; u >= 0; --u) list.push_back(wait(Kind::all_reduce, u));
  list.push_back(run(Kind::optimizer, 0));
  return list;
}

List zero1(int units) {
  List list = ddp(units);
  for (int u = 0; u < units; ++u) list.push_back(start(Kind::unshard, u));
  for (int u = 0; u < units; ++u) list.push_back(wait(Kind::unshard, u));
  return list;
}

// As FsdpEngine does it: gather(unit, next) waits for the unit and then starts the next one's.
List sharded(int units, bool reshard) {
  List list = {start(Kind::unshard, 0)};
  for (int u = 0; u < units; ++u) {
    list.push_back(wait(Kind::unshard, u));
    if (u + 1 < units) list.push_back(start(Kind::unshard, u + 1));
    list.push_back(run(Kind::forward, u));
    if (reshard && u > 0) list.push_back(run(Kind::reshard, u));
  }
  if (units > 1) {  // the outermost module's own parameters are still whole
    list.push_back(run(Kind::forward, 0));
    list.push_back(run(Kind::backward, 0));
    if (reshard) list.push_back(start(Kind::unshard, units - 1));
  }
  for (int u = units - 1; u >= 0; --u) {
    if (reshard && u > 0) {
      list.push_back(wait(Kind::unshard, u));
      if (u > 1) list.push_back(start(Kind::unshard, u - 1));
    }
    list.push_back(run(Kind::backward, u));
    list.push_back(run(Kind::reshard, u));
    if (u + 1 < units) list.push_back(wait(Kind::reduce, u + 1));
    list.push_back(start(Kind::reduce, u));
  }
  list.push_back(wait(Kind::reduce, 0));
  list.push_back(run(Kind::optimizer, 0));
  return list;
}

List tensor_parallel(int units) {
  List list;
  const auto summed = [&](Kind kind, int unit, bool is_summed) {
    list.push_back(run(kind, unit));
    if (!is_summed) return;
    list.push_back(start(kind, unit));
    list.push_back(wait(kind, unit));
  };
  for (int u = 0; u < units; ++u) summed(Kind::forward, u, true);
  for (int u = units - 1; u >= 0; --u) summed(Kind::backward, u, u > 0);
  list.push_back(run(Kind::optimizer, 0));
  return list;
}

StepSchedule zero2_step(int units, int ranks) { return fsdp_step(units, ranks, false); }
StepSchedule whole_fsdp_step(int units, int ranks) { return fsdp_step(units, ranks); }

struct Named {
  const char* name;
  StepSchedule (*make)(int units, int ranks);
};
constexpr Named kSteps[] = {{"ddp", ddp_step},
                            {"zero1", zero1_step},
                            {"zero2", zero2_step},
                            {"fsdp", whole_fsdp_step},
                            {"tp", tensor_parallel_step}};

}  // namespace

StepSchedule ddp_step(int units, int ranks) { return on_all("ddp", units, ranks, ddp); }

StepSchedule zero1_step(int units, int ranks) { return on_all("zero1", units, ranks, zero1); }

StepSchedule fsdp_step(int units, int ranks, bool reshard_after_forward) {
  return reshard_after_forward
             ? on_all("fsdp", units, ranks, [](int all) { return sharded(all, true); })
             : on_all("zero2", units, ranks, [](int all) { return sharded(all, false); });
}

StepSchedule tensor_parallel_step(int units, int ranks) {
  WEFT_CHECK(units >= 2, InvalidArgument, "schedule", "tp: got ", units,
             " units, expected at least 2: a table and a head");
  return on_all("tp", units, ranks, tensor_parallel);
}

const std::vector<std::string>& step_names() {
  static const auto& names = *[] {
    auto* list = new std::vector<std::string>;
    for (const Named& each : kSteps) list->push_back(each.name);
    return list;
  }();
  return names;
}

StepSchedule make_step(const std::string& name, int units, int ranks) {
  const auto* found = std::ranges::find(kSteps, name, &Named::name);
  WEFT_CHECK(found != std::end(kSteps), InvalidArgument, "schedule", "got '", name, "', expected ",
             one_of(step_names()), did_you_mean(name, step_names()));
  return found->make(units, ranks);
}

}  // namespace weft::parallel
