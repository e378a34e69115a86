#include "weft/train/memory_table.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iomanip>
#include <sstream>
#include <vector>

#include "weft/core/runtime/allocator.h"

namespace weft::train {
namespace {

// Why the first device of DataParallel holds more of it.
constexpr std::array<const char*, kMemoryOwners> kWhy = {
    "the loss is computed there",
    "it holds the model itself",
    "the gradients of all devices are added up there",
    "the optimiser works on the model itself, not on its copies",
    "the outputs of all devices are gathered there",
    "the data set and the whole batches are there",
};

double mib(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

std::string memory_table(std::span<const Device> devices, bool model_in_parts) {
  std::vector<MemoryStats> stats;
  for (const Device device : devices) stats.push_back(memory_stats(device));
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out << std::fixed << std::setprecision(2);
  const auto row = [&](const std::string& name, const auto& bytes_of) {
    out << std::left << std::setw(20) << name << std::right;
    for (const MemoryStats& of : stats) out << std::setw(12) << mib(bytes_of(of));
    out << '\n';
  };
  out << std::left << std::setw(20) << "peak memory, MiB" << std::right;
  for (const Device device : devices) out << std::setw(12) << to_string(device);
  out << '\n';
  for (std::size_t i = 0; i < kMemoryOwners; ++i) {
    row(to_string(static_cast<MemoryOwner>(i)),
        [&](const MemoryStats& of) { return of.peak_by_owner[i]; });
  }
  row("together", [](const MemoryStats& of) { return of.peak_in_use_bytes; });

  const auto [least, most] =
      std::ranges::minmax_element(stats, {}, &MemoryStats::peak_in_use_bytes);
  if (stats.empty() || most->peak_in_use_bytes == least->peak_in_use_bytes) return out.str();
  const auto more = [&](std::size_t i) { return most->peak_by_owner[i] - least->peak_by_owner[i]; };
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < kMemoryOwners; ++i) {
    if (more(i) > 0) order.push_back(i);
  }
  std::ranges::sort(order, std::greater(), more);
  const auto name = [&](const auto& of) {
    return devices[static_cast<std::size_t>(of - stats.begin())];
  };
  out << name(most) << " holds " << mib(most->peak_in_use_bytes - least->peak_in_use_bytes)
      << " MiB more than " << name(least) << ": ";
  const bool leads = !model_in_parts && most == stats.begin();
  for (std::size_t i = 0; i < order.size(); ++i) {
    out << (i ? "; " : "") << mib(more(order[i])) << " of "
        << to_string(static_cast<MemoryOwner>(order[i]));
    if (leads) out << ", for " << kWhy[order[i]];
  }
  out << (model_in_parts ? "; the parts of the model differ.\n" : ".\n");
  return out.str();
}

}  // namespace weft::train
