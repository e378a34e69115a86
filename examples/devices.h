// Shared by the programs that use several devices of one process.
#pragma once

#include <charconv>
#include <cstdio>
#include <iterator>
#include <string>
#include <vector>

#include "weft/core/runtime/cores.h"
#include "weft/train/memory_table.h"
#include "weft/train/metrics.h"
#include "weft/train/options.h"
#include "weft/weft.h"

namespace weft::examples {

/// The numbers in "0,1"; empty for any other text.
inline std::vector<int> device_numbers(const std::string& text) {
  std::vector<int> numbers;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (;;) {
    int number = 0;
    const auto [stop, error] = std::from_chars(at, end, number);
    if (error != std::errc() || number < 0) return {};
    numbers.push_back(number);
    if (stop == end) return numbers;
    if (*stop != ',') return {};
    at = stop + 1;
  }
}

/// --devices
inline train::Flag devices_flag(std::string& devices) {
  return {.name = "--devices",
          .value = &devices,
          .help = "which GPUs, or host devices: 0,1; or all",
          .check = [](const std::string& text) {
            const bool good = text == "all" || !device_numbers(text).empty();
            return good ? std::string() : "'" + text + "' is neither all nor numbers like 0,1";
          }};
}

/// Devices of the same kind as options.device.
inline std::vector<Device> listed_devices(const train::Options& options, const std::string& text) {
  std::vector<Device> list;
  for (const int number : device_numbers(text)) list.emplace_back(options.device.type, number);
  for (int i = 0; text == "all" && i < device_count(options.device.type); ++i) {
    list.emplace_back(options.device.type, i);
  }
  return list;
}

/// Says so if the CPU's devices are more than its cores: their gaps are then no bubbles.
inline void warn_of_few_cores(const std::vector<Device>& list) {
  const int cores = core_count();
  if (!list[0].is_cpu() || std::ssize(list) <= cores) return;
  std::printf("%zu devices share %d core%s: they wait for a core, not only for each other\n",
              list.size(), cores, cores == 1 ? "" : "s");
}

/// Devices of the same kind as options.device, which becomes the first of them.
inline std::vector<Device> devices(train::Options& options, const std::string& text) {
  std::vector<Device> list = listed_devices(options, text);
  if (list.size() == 1) {
    std::printf("one device: nothing runs beside it%s\n",
                list[0].is_cpu() ? "; --host-devices 2 splits the CPU in two" : "");
  }
  options.device = list[0];
  warn_of_few_cores(list);
  return list;
}

/// The first two devices, for the parts of a model; options.device becomes the first of them.
/// Throws InvalidArgument if there is only one.
inline std::vector<Device> two_devices(train::Options& options, const std::string& text) {
  std::vector<Device> list = listed_devices(options, text);
  WEFT_CHECK(list.size() >= 2 && !(list[0] == list[1]), InvalidArgument, options.example,
             "the parts of the model need two devices, got ", list[0],
             list.size() < 2 ? " alone" : " twice",
             "; --host-devices 2 splits the CPU in two (with --device cpu), --devices 0,1 names "
             "two of the machine's GPUs");
  list.resize(2);
  options.device = list[0];
  warn_of_few_cores(list);
  return list;
}

/// The peak memory of each device, for metrics.json.
inline train::TestFigures peaks(const std::vector<Device>& devices) {
  train::TestFigures figures;
  for (const Device device : devices) {
    figures.emplace_back("peak_bytes_" + to_string(device),
                         static_cast<double>(memory_stats(device).peak_in_use_bytes));
  }
  return figures;
}

}  // namespace weft::examples
