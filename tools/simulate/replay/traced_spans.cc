#include "weft/tools/simulate/replay/traced_spans.h"

#include <algorithm>
#include <limits>

namespace weft::simulator {

using nlohmann::json;

bool TracedSpans::has(const char* category) const {
  return std::ranges::find(spans, category, &TracedSpan::category) != spans.end();
}

namespace {

// As an int; -1 for what is none.
int whole(double number) {
  const bool is_int = number >= 0 && number <= std::numeric_limits<int>::max();
  return is_int ? static_cast<int>(number) : -1;
}

}  // namespace

TracedSpans spans_of(const json& file) {
  TracedSpans all;
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
    all.has_thin_links |= span.category == "link";
    all.on_cuda |= span.device.starts_with("cuda");
  }
  return all;
}

}  // namespace weft::simulator
