#include "weft/tools/simulate/replay/traced_spans.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/tools/simulate/cost_terms.h"

namespace weft::simulator {

using nlohmann::json;

bool TracedSpans::has(const char* category) const {
  return std::ranges::find(spans, category, &TracedSpan::category) != spans.end();
}

namespace {

// The number as an int; -1 if it is not one.
int whole(double number) {
  const bool is_int = number >= 0 && number <= std::numeric_limits<int>::max();
  return is_int ? static_cast<int>(number) : -1;
}

}  // namespace

TracedSpans spans_of(const json& file) {
  TracedSpans all;
  std::map<std::pair<json, json>, std::string> rows;  // by process and thread
  for (const json& event : file.at("traceEvents")) {
    if (event.at("ph") != "M" || event.at("name") != "thread_name") continue;
    rows[{event.at("pid"), event.at("tid")}] = event.at("args").at("name");
  }
  for (const json& event : file.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    const json& args = event.at("args");
    const auto text = [&](const char* key) { return args.value(key, std::string()); };
    const auto number = [&](const char* key) { return whole(args.value(key, -1.0)); };
    TracedSpan& span = all.spans.emplace_back();
    span.category = event.at("cat");
    span.name = event.at("name");
    span.module = text("module");
    span.device = text("device");
    span.rank = whole(event.at("pid").get<double>());
    span.begin = event.at("ts").get<double>() / 1e6;
    span.end = span.begin + event.at("dur").get<double>() / 1e6;
    span.step = number("step");
    span.stage = number("stage");
    span.micro_batch = number("micro_batch");
    span.bucket = number("bucket");
    span.parameter = number("parameter");
    span.ahead = number("ahead");
    span.element_size = number("element_size");
    span.bytes = args.value("bytes", -1.0);
    // A group's thread has the group's name (comm/group/operation_queue.cc).
    constexpr std::string_view kThread = "comm ";
    if (span.category == "comm") {
      const auto row = rows.find({event.at("pid"), event.value("tid", json())});
      if (row != rows.end() && row->second.starts_with(kThread)) {
        span.group = row->second.substr(kThread.size());
      }
    }
    all.has_thin_links |= span.category == "link";
    all.on_cuda |= span.device.starts_with("cuda");
  }
  return all;
}

void check_one_group(const TracedSpans& traced, const std::vector<TracedTime>& times,
                     const char* engine) {
  std::map<std::string, std::string> groups;  // by axis, which several groups share
  std::set<std::string> all;
  for (const TracedSpan& span : traced.spans) {
    const bool within = std::ranges::any_of(times, [&](const TracedTime& time) {
      return span.step == time.step && span.rank == time.rank && span.begin >= time.begin &&
             span.begin < time.end;
    });
    if (span.category != "comm" || !within) continue;
    const std::string label = span.group.empty() ? "all ranks" : span.group;
    all.insert(label);
    groups.emplace(label.substr(0, label.find(" of ")), label);
  }
  std::string text;
  const auto tell = [&](const std::string& label) { text += (text.empty() ? "" : "; ") + label; };
  // Names one group of each axis or, if there is one axis, all of its groups.
  if (groups.size() == 1) {
    std::ranges::for_each(all, tell);
  } else {
    for (const auto& [axis, label] : groups) tell(label);
  }
  WEFT_CHECK(all.size() <= 1, Io, kOp, "in step ", times.front().step,
             " its ranks send messages in several groups (", text, "): a replay knows only ",
             engine, " among all ranks");
}

}  // namespace weft::simulator
