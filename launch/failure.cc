#include "weft/launch/failure.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <iomanip>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/core/runtime/file.h"

namespace weft::launch {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostRanksShown = 8;
constexpr unsigned kMostRank = 1 << 16;

/// The ranks in "generation 2: ranks 0-3, 8"; numbers that are cut off are missing.
std::set<int> members_of(std::string_view group) {
  std::set<int> members;
  bool in_range = false;
  group = group.substr(0, group.find('#'));  // " #2"
  if (const std::size_t colon = group.find(':'); colon != group.npos) group.remove_prefix(colon);
  while (!group.empty()) {
    unsigned number = 0;
    const auto [end, error] = std::from_chars(group.data(), group.data() + group.size(), number);
    if (error != std::errc() || number > kMostRank) {
      in_range = group.starts_with('-');
      group.remove_prefix(1);
      continue;
    }
    group.remove_prefix(static_cast<std::size_t>(end - group.data()));
    const int last = static_cast<int>(number);
    for (int r = in_range && !members.empty() ? *members.rbegin() : last; r <= last; ++r) {
      members.insert(r);
    }
  }
  return members;
}

/// The generation of a group, in a run that outlives its ranks; 0 for other groups.
int generation_of(const std::string& group) {
  constexpr std::string_view kGeneration = "generation ";
  return group.starts_with(kGeneration) ? std::atoi(group.c_str() + kGeneration.size()) : 0;
}

std::string call_of(const LastOperation& operation) {
  std::string text = operation.name;
  if (operation.peer >= 0) text += detail::concat(" with rank ", operation.peer);
  text += detail::concat(' ', operation.number);
  return operation.tag.empty() ? text : text + " (" + operation.tag + ')';
}

std::string duration(std::int64_t ns) {
  const double seconds = static_cast<double>(std::max<std::int64_t>(ns, 0)) * 1e-9;
  if (seconds < 1) return detail::concat(std::fixed, std::setprecision(1), seconds * 1e3, " ms");
  return detail::concat(std::fixed, std::setprecision(1), seconds, " s");
}

/// "all_reduce 31 (bucket 0) of 4096 f32 at step 5: since 3.2 s"
std::string line_of(const LastOperation& operation, std::int64_t failed_at_ns) {
  std::string text = call_of(operation);
  if (!operation.dtype.empty()) {
    text += detail::concat(" of ", operation.count, ' ', operation.dtype);
  }
  if (operation.step >= 0) text += detail::concat(" at step ", operation.step);
  if (!operation.module.empty()) text += " in " + operation.module;
  if (!operation.ended()) return text + ": since " + duration(failed_at_ns - operation.begin_ns);
  return text + (operation.failed ? ": failed after " : ": took ") +
         duration(operation.end_ns - operation.begin_ns);
}

/// The collectives of a group: per rank of this node, by number.
using Calls = std::map<int, std::map<std::int64_t, const LastOperation*>>;

/// Only groups of the last generation: in earlier ones ranks have failed without ending the run.
std::map<std::string, Calls> calls_by_group(const AttemptResult& result) {
  std::map<std::string, Calls> groups;
  for (const RankResult& rank : result.ranks) {
    for (const LastOperation& operation : rank.operations) {
      if (operation.peer < 0) groups[operation.group][rank.rank][operation.number] = &operation;
    }
  }
  int last = 0;
  for (const auto& [group, calls] : groups) last = std::max(last, generation_of(group));
  std::erase_if(groups, [&](const auto& entry) { return generation_of(entry.first) < last; });
  for (auto& [group, calls] : groups) {
    const std::set<int> members = members_of(group);
    for (const RankResult& rank : result.ranks) {
      // If its box is full, its operations of the group may have been overwritten.
      if (members.contains(rank.rank) && rank.operations.size() < BlackBox::kRecords - 1) {
        calls[rank.rank];
      }
    }
  }
  return groups;
}

std::string list_of(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), kMostRanksShown); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  }
  return ranks.size() > kMostRanksShown ? text + " ..." : text;
}

/// Why the ranks differ in operation `number`; empty: they do not.
std::string why_different(const Calls& calls, std::int64_t number) {
  std::vector<int> absent, inside, failed;
  const LastOperation* first = nullptr;
  std::string other;
  for (const auto& [rank, operations] : calls) {
    const auto found = operations.find(number);
    if (found == operations.end()) {
      const bool overwritten = !operations.empty() && operations.begin()->first > number;
      if (!overwritten) absent.push_back(rank);
      continue;
    }
    const LastOperation& mine = *found->second;
    if (!mine.ended()) inside.push_back(rank);
    if (mine.failed) failed.push_back(rank);
    if (!first) first = &mine;
    if (other.empty() && std::tie(mine.name, mine.count, mine.dtype, mine.tag) !=
                             std::tie(first->name, first->count, first->dtype, first->tag)) {
      const auto text = [](const LastOperation& it) {
        return detail::concat(call_of(it), " of ", it.count, ' ', it.dtype);
      };
      other = detail::concat("rank ", first->rank, " calls ", text(*first), ", rank ", rank,
                             " calls ", text(mine));
    }
  }
  const auto several = [](const std::vector<int>& ranks, const char* one, const char* many) {
    return list_of(ranks) + (ranks.size() == 1 ? one : many);
  };
  if (!other.empty()) return other;
  if (!absent.empty()) return several(absent, " has not begun it", " have not begun it");
  if (!inside.empty()) return several(inside, " has not ended it", " have not ended it");
  return failed.empty() ? "" : "it failed on " + list_of(failed);
}

Json to_json(const LastOperation& operation, std::int64_t failed_at_ns) {
  const auto seconds = [&](std::int64_t ns) {
    return static_cast<double>(ns - failed_at_ns) * 1e-9;
  };
  Json json = {{"name", operation.name},
               {"number", operation.number},
               {"group", operation.group},
               {"peer", nullptr},
               {"dtype", operation.dtype},
               {"count", operation.count},
               {"bytes", operation.bytes},
               {"tag", operation.tag},
               {"module", operation.module},
               {"phase", operation.phase},
               {"step", nullptr},
               {"begin", seconds(operation.begin_ns)},
               {"end", nullptr},
               {"state", !operation.ended() ? "running"
                         : operation.failed ? "failed"
                                            : "ended"}};
  if (operation.peer >= 0) json["peer"] = operation.peer;
  if (operation.step >= 0) json["step"] = operation.step;
  if (operation.ended()) json["end"] = seconds(operation.end_ns);
  return json;
}

Json memory_of(const RankResult& rank) {
  Json devices = Json::array();
  for (const DeviceMemory& memory : rank.memory) {
    Json in_use = Json::object();
    for (int owner = 0; owner < kMemoryOwners; ++owner) {
      if (memory.in_use[owner] != 0) {
        in_use[to_string(static_cast<MemoryOwner>(owner))] = memory.in_use[owner];
      }
    }
    devices.push_back(
        {{"device", to_string(memory.device)}, {"limit", memory.limit}, {"in_use", in_use}});
  }
  return devices;
}

}  // namespace

void read_black_box(const BlackBox& box, RankResult& rank) {
  rank.operations.clear();
  for (const BlackBox::Found& found : box.operations()) {
    LastOperation operation{found,
                            box.text(found.name),
                            box.text(found.group),
                            box.text(found.tag),
                            box.text(found.module),
                            box.text(found.phase)};
    const bool typed = found.dtype >= 0 && found.dtype <= static_cast<int>(DType::boolean);
    if (typed) operation.dtype = to_string(static_cast<DType>(found.dtype));
    rank.operations.push_back(std::move(operation));
  }
  if (!rank.memory.empty()) return;
  for (const DeviceType type : {DeviceType::cpu, DeviceType::cuda}) {
    for (int i = 0; i < kMaxDevices; ++i) {
      const BlackBox::Memory& memory = box.memory(Device(type, i));
      DeviceMemory device{.device = Device(type, i), .limit = memory.limit.load()};
      std::ranges::transform(memory.in_use, device.in_use.begin(),
                             [](auto& n) { return n.load(); });
      if (device.in_use != DeviceMemory().in_use) rank.memory.push_back(device);
    }
  }
}

std::optional<Difference> first_difference(const AttemptResult& result) {
  std::optional<Difference> first;
  std::int64_t first_ns = 0;
  for (const auto& [group, calls] : calls_by_group(result)) {
    std::map<std::int64_t, const LastOperation*> earliest;  // of all ranks, by number
    for (const auto& [rank, operations] : calls) {
      for (const auto& [number, operation] : operations) {
        const LastOperation*& known = earliest[number];
        if (!known || operation->begin_ns < known->begin_ns) known = operation;
      }
    }
    for (const auto& [number, operation] : earliest) {
      const std::string why = why_different(calls, number);
      if (why.empty()) continue;
      if (!first || operation->begin_ns < first_ns) {
        first = Difference{group, number, why, call_of(*operation)};
        first_ns = operation->begin_ns;
      }
      break;
    }
  }
  return first;
}

std::string last_operations(const AttemptResult& result) {
  const std::optional<Difference> first = first_difference(result);
  const auto is_of = [&](const LastOperation& operation, std::int64_t number) {
    return operation.peer < 0 && operation.group == first->group && operation.number == number;
  };
  // Sorted by how far they have come, so that ranks that have not ended the operation are shown
  // rather than others.
  std::vector<std::pair<int, std::size_t>> ranks;
  for (std::size_t i = 0; i < result.ranks.size(); ++i) {
    const std::vector<LastOperation>& operations = result.ranks[i].operations;
    const auto at = std::ranges::find_if(
        operations, [&](const LastOperation& it) { return first && is_of(it, first->number); });
    const bool none = at == operations.end();
    ranks.emplace_back(none ? 0 : !at->ended() ? 1 : at->failed ? 2 : 3, i);
  }
  std::ranges::sort(ranks);
  const std::size_t shown = std::min(ranks.size(), kMostRanksShown), more = ranks.size() - shown;
  ranks.resize(shown);
  std::ranges::sort(ranks, {}, [](const auto& entry) { return entry.second; });

  std::string text;
  bool any = false;
  for (const auto& [state, index] : ranks) {
    const RankResult& rank = result.ranks[index];
    const std::string name = detail::concat("|   rank ", rank.rank, ": ");
    const bool knows_all = rank.operations.size() < BlackBox::kRecords - 1;
    if (first && state == 0 && knows_all && members_of(first->group).contains(rank.rank)) {
      text += name + "has not begun " + first->call + '\n';
    }
    for (const LastOperation& operation : rank.operations) {
      const bool around =
          first && (is_of(operation, first->number - 1) || is_of(operation, first->number));
      if (!around && &operation != &rank.operations.back()) continue;
      any = true;
      text += name + line_of(operation, result.failed_at_ns);
      if (first && operation.group != first->group) text += ", of " + operation.group;
      text += '\n';
    }
  }
  if (!any) return {};
  if (more > 0) text += detail::concat("|   and of ", more, " more\n");
  if (!first) return "| their last operations between ranks:\n" + text;
  return detail::concat("| ", first->group, " differ first at ", first->call, ": ", first->why,
                        '\n') +
         text;
}

void write_failure(const std::string& path, const AttemptResult& result,
                   const std::vector<std::string>& command, int world_size) {
  const RankResult* const failed =
      result.unresponsive() ? result.unresponsive() : result.first_failure();
  Json json = {{"command", command},       {"host", host_name()},
               {"world_size", world_size}, {"status", result.status()},
               {"first_failure", nullptr}, {"first_difference", nullptr},
               {"ranks", Json::array()},   {"replaced", Json::array()}};
  if (failed) json["first_failure"] = failed->rank;
  if (const auto first = first_difference(result)) {
    json["first_difference"] = {{"group", first->group},
                                {"number", first->number},
                                {"call", first->call},
                                {"why", first->why}};
  }
  for (const RankResult& rank : result.ranks) {
    Json operations = Json::array();
    for (const LastOperation& operation : rank.operations) {
      operations.push_back(to_json(operation, result.failed_at_ns));
    }
    json["ranks"].push_back({{"rank", rank.rank},
                             {"pid", rank.pid},
                             {"end", describe(rank)},
                             {"told_to_end", rank.told_to_end},
                             {"phase", rank.phase},
                             {"step", nullptr},
                             {"memory", memory_of(rank)},
                             {"operations", operations}});
    if (rank.step >= 0) json["ranks"].back()["step"] = rank.step;
  }
  for (const RankResult& rank : result.replaced) {
    json["replaced"].push_back({{"rank", rank.rank}, {"pid", rank.pid}, {"end", describe(rank)}});
  }
  // The texts of programs need not be UTF-8.
  write_file_atomically(path, json.dump(1, ' ', false, Json::error_handler_t::replace) + '\n');
}

}  // namespace weft::launch
