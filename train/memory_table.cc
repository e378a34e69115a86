#include "weft/train/memory_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iomanip>
#include <sstream>
#include <vector>

#include "weft/core/runtime/runtime.h"

namespace weft::train {
namespace {

// The reasons why the first device of DataParallel holds more, by owner.
constexpr std::array<const char*, kMemoryOwners> kWhy = {
    "the loss is computed there",
    "it holds the model itself",
    "the gradients of all devices are added up there",
    "the optimiser works on the model itself, not on its copies",
    "the outputs of all devices are gathered there",
    "the whole batches are there",
    "batches are taken from it there",
    "parameters are gathered there",
    "messages lie there",
};

std::string readable(std::int64_t bytes) { return readable_bytes(static_cast<std::size_t>(bytes)); }

}  // namespace

std::string memory_table(std::span<const Device> devices, bool model_in_parts) {
  std::vector<MemoryStats> stats;
  for (const Device device : devices) stats.push_back(memory_stats(device));
  std::ostringstream out;
  const auto row = [&](const char* name, const auto& left_of, const auto& right_of) {
    std::ostringstream line;
    line << std::left << std::setw(17) << name << std::right;
    for (std::size_t i = 0; i < stats.size(); ++i) {
      line << std::setw(14) << left_of(i) << std::setw(13) << right_of(i);
    }
    const std::string cells = line.str();
    out << cells.substr(0, cells.find_last_not_of(' ') + 1) << '\n';
  };
  const auto text = [](const char* always) { return [=](std::size_t) { return always; }; };
  row("memory", text(""), [&](std::size_t i) { return to_string(devices[i]); });
  row("", text("at its peak"), text("at most"));
  for (std::size_t owner = 0; owner < kMemoryOwners; ++owner) {
    const auto unused = [&](const MemoryStats& of) { return of.most_by_owner[owner] == 0; };
    if (std::ranges::all_of(stats, unused)) continue;
    row(
        to_string(static_cast<MemoryOwner>(owner)),
        [&](std::size_t i) { return readable(stats[i].peak_by_owner[owner]); },
        [&](std::size_t i) { return readable(stats[i].most_by_owner[owner]); });
  }
  row("together", [&](std::size_t i) { return readable(stats[i].peak_in_use_bytes); }, text(""));
  out << "Gradients are those of weights and, until a layer's backward has used them, of "
         "activations.\n";

  const auto [least, most] =
      std::ranges::minmax_element(stats, {}, &MemoryStats::peak_in_use_bytes);
  if (stats.empty() || most->peak_in_use_bytes == least->peak_in_use_bytes) return out.str();
  const auto more = [&](std::size_t i) { return most->peak_by_owner[i] - least->peak_by_owner[i]; };
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < kMemoryOwners; ++i) {
    if (more(i) != 0) order.push_back(i);
  }
  std::ranges::sort(order, std::greater(), more);
  const auto name = [&](const auto& of) {
    return devices[static_cast<std::size_t>(of - stats.begin())];
  };
  out << "The peak of " << name(most) << " is "
      << readable(most->peak_in_use_bytes - least->peak_in_use_bytes) << " above that of "
      << name(least) << ": ";
  const bool leads = !model_in_parts && most == stats.begin();
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::int64_t bytes = more(order[i]);
    out << (i ? ", " : "") << readable(std::abs(bytes)) << (bytes > 0 ? " more of " : " less of ")
        << to_string(static_cast<MemoryOwner>(order[i]));
    if (leads && bytes > 0) out << " (" << kWhy[order[i]] << ')';
  }
  out << (model_in_parts ? "; the parts of the model differ.\n" : ".\n");
  return out.str();
}

std::vector<MemoryStats> memory_of_rank(Device device, const Ranks& ranks) {
  if (ranks.size > 1) return {memory_stats(device)};
  std::vector<MemoryStats> held;
  for (int i = 0; i < device_count(device.type); ++i) {
    const MemoryStats stats = memory_stats(Device(device.type, i));
    if (stats.peak_in_use_bytes > 0) held.push_back(stats);
  }
  return held;
}

std::vector<TestFigures> memory_by_rank(const std::vector<MemoryStats>& own, const Ranks& ranks) {
  constexpr std::size_t kFigures = kMemoryOwners + 1;
  // Each rank has its own figures, and zeros in the places of the others.
  const auto before = static_cast<std::size_t>(ranks.rank),
             size = static_cast<std::size_t>(ranks.size);
  std::vector<double> all((size - 1 + own.size()) * kFigures);
  auto next = all.begin() + static_cast<std::ptrdiff_t>(before * kFigures);
  for (const MemoryStats& stats : own) {
    next = std::ranges::copy(stats.most_by_owner, next).out;
    *next++ = static_cast<double>(stats.peak_in_use_bytes);
  }
  all = ranks.sum(std::move(all));
  std::vector<TestFigures> result(all.size() / kFigures);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::size_t figure = i % kFigures;
    std::string name =
        figure < kMemoryOwners ? to_string(static_cast<MemoryOwner>(figure)) : "peak";
    std::ranges::replace(name, ' ', '_');
    result[i / kFigures].emplace_back(name, all[i]);
  }
  return result;
}

std::string memory_table(const std::vector<TestFigures>& by_rank) {
  std::ostringstream out;
  out << std::left << std::setw(17) << "memory, at most" << std::right;
  for (std::size_t r = 0; r < by_rank.size(); ++r)
    out << std::setw(13) << detail::concat("rank ", r);
  for (std::size_t row = 0; row <= kMemoryOwners; ++row) {
    const auto bytes = [&](const TestFigures& rank) {
      return static_cast<std::int64_t>(rank[row].second);
    };
    if (std::ranges::all_of(by_rank, [&](const TestFigures& rank) { return bytes(rank) == 0; }))
      continue;
    out << '\n'
        << std::left << std::setw(17)
        << (row < kMemoryOwners ? to_string(static_cast<MemoryOwner>(row)) : "all at once")
        << std::right;
    for (const TestFigures& rank : by_rank) out << std::setw(13) << readable(bytes(rank));
  }
  return out.str();
}

}  // namespace weft::train
