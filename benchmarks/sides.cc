#include "weft/benchmarks/sides.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "weft/core/base/device.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/file.h"
#include "weft/core/runtime/parallel.h"

namespace weft::bench {

using nlohmann::json;

void alternate(std::vector<Side>& sides, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < sides.size(); ++i) {
      Side& side = sides[round % 2 ? sides.size() - 1 - i : i];
      side.ms.push_back(side.time(side.block) / side.block);
    }
  }
}

std::vector<double> ratios(const Side& theirs, const Side& mine) {
  std::vector<double> result;
  for (std::size_t i = 0; i < theirs.ms.size(); ++i) result.push_back(theirs.ms[i] / mine.ms[i]);
  return result;
}

std::string spread_warning(const Side& side) {
  // The quartiles of an idle machine are a few per cent from the median.
  constexpr double kWide = 0.25;
  const Quartiles q = quartiles(side.ms);
  const double spread = (q.high - q.low) / q.median;
  if (!(q.median > 0 && spread >= kWide)) return {};
  return detail::concat("the machine is loaded: half of the times of ", side.label,
                        " are spread over ", std::lround(100 * spread),
                        " % of their median. Trust the ratio, not the times");
}

json to_json(const Interval& interval) {
  return {{"low", interval.low}, {"median", interval.median}, {"high", interval.high}};
}

std::string to_text(const json& result) {
  std::string text;
  for (const auto& [key, value] : result.items()) {
    text += (text.empty() ? "{\n " : ",\n ") + json(key).dump() + ": ";
    if (!value.is_array() || value.empty() || !value[0].is_object()) {
      text += value.dump();
      continue;
    }
    const char* before = "[\n  ";
    for (const json& row : value) text += std::exchange(before, ",\n  ") + row.dump();
    text += "\n ]";
  }
  return text + "\n}\n";
}

json describe_machine() {
  json machine = {{"cpu", cpu_model()}, {"cores", core_count()}};
  double load = 0;
  if (getloadavg(&load, 1) == 1) machine["load_average"] = load;
  if (const char* commit = std::getenv("WEFT_COMMIT")) machine["commit"] = commit;
  return machine;
}

void make_folder_of(const std::string& path) {
  const std::error_code error = make_folders(std::filesystem::path(path).parent_path());
  WEFT_CHECK(!error, Io, "bench", "cannot make the folder of ", path, ": ", error.message());
}

}  // namespace weft::bench
