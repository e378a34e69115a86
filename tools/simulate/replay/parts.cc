#include "weft/tools/simulate/replay/parts.h"

#include <algorithm>
#include <cstdlib>

#include "weft/tools/simulate/cost_terms.h"
#include "weft/tools/simulate/median.h"

namespace weft::simulator {

MessageLine fit(const std::vector<TimedMessage>& messages) {
  double n = 0, x = 0, y = 0, xx = 0, xy = 0, least = 0, most = 0;
  for (const auto& [bytes, took] : messages) {
    least = n > 0 ? std::min(least, bytes) : bytes;
    most = std::max(most, bytes);
    n += 1, x += bytes, y += took, xx += bytes * bytes, xy += bytes * took;
  }
  if (n == 0 || xx == 0) return {};
  const double across = most >= 4 * least ? n * xx - x * x : 0;
  double per_byte = across > 0 ? (n * xy - x * y) / across : 0;
  double latency = (y - per_byte * x) / n;
  if (latency < 0 || across <= 0) latency = 0, per_byte = xy / xx;
  if (per_byte < 0) per_byte = 0, latency = y / n;
  return {latency, per_byte};
}

Link link_of(const Link& recorded, const Setting& setting) {
  Link link = recorded;
  if (setting.latency >= 0) link.latency = setting.latency;
  if (setting.bytes_per_second >= 0) link.bytes_per_second = setting.bytes_per_second;
  return link;
}

void check_bf16(const Setting& setting, bool has) {
  WEFT_CHECK(!setting.bf16 || !has, InvalidArgument, kOp, "got the setting '", setting.text,
             "', but the trace has bf16 already");
}

bool is_in_ring(const comm::ThinLink& link, int ranks) {
  const int apart = std::abs(link.a - link.b);
  return apart == 1 || apart == ranks - 1;
}

Replayed replayed(const Setting& setting, int count, const std::vector<ReplayedStep>& steps) {
  std::vector<double> seconds, exposed;
  for (const ReplayedStep& step : steps) {
    seconds.push_back(step.seconds);
    exposed.push_back(step.exposed);
  }
  return {.setting = setting,
          .count = count,
          .seconds = median(seconds),
          .exposed = median(exposed),
          .extrapolated = setting.is_extrapolated(),
          .settled = std::ranges::all_of(steps, &ReplayedStep::settled)};
}

std::string counted(std::size_t count, const std::string& thing) {
  const bool in_es = thing.ends_with("ch");
  return concat(count, ' ', thing, count == 1 ? "" : in_es ? "es" : "s");
}

}  // namespace weft::simulator
