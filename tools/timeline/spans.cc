#include "weft/tools/timeline/spans.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "weft/core/base/error.h"
#include "weft/tools/json_file.h"

namespace weft::timeline {
namespace {

using nlohmann::json;

constexpr const char* kOp = "timeline";
// From this number on the threads of a trace are streams (core/trace/trace_json.cc).
constexpr std::int64_t kFirstStream = 1'000'000;

std::int64_t number(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? -1 : found->get<std::int64_t>();
}

TraceSpan span_of(const json& event) {
  const double begin = event.at("ts"), length = event.at("dur");
  WEFT_CHECK(length >= 0, Io, kOp, "a span lasts ", length, " us");
  const json& args = event.at("args");
  return {.category = event.at("cat"),
          .name = event.at("name"),
          .rank = number(event, "pid"),
          .thread = number(event, "tid"),
          .begin = begin * 1e-6,
          .end = (begin + length) * 1e-6,
          .step = number(args, "step"),
          .stage = number(args, "stage"),
          .micro_batch = number(args, "micro_batch"),
          .replica = number(args, "replica"),
          .device = args.value("device", "")};
}

std::vector<TraceSpan> spans_of(const json& trace) {
  std::vector<TraceSpan> spans;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X") spans.push_back(span_of(event));
  }
  return spans;
}

}  // namespace

std::vector<TraceSpan> read_spans(const std::string& path) {
  std::vector<TraceSpan> spans =
      tools::read_json(path, kOp, "no trace that --trace wrote", spans_of);
  const auto of_stream = [](const TraceSpan& span) { return span.thread >= kFirstStream; };
  if (std::ranges::any_of(spans, of_stream)) {
    std::erase_if(spans, [&](const TraceSpan& span) {
      return !span.device.empty() && !span.device.starts_with("cpu") && !of_stream(span);
    });
  }
  return spans;
}

std::size_t choose_step(const std::vector<StepLength>& steps, std::int64_t wanted) {
  WEFT_CHECK(!steps.empty(), InvalidArgument, kOp, "the trace has no whole step");
  if (wanted >= 0) {
    const auto found = std::ranges::find(steps, wanted, &StepLength::step);
    WEFT_CHECK(found != steps.end(), InvalidArgument, kOp, "the trace has no whole step ", wanted,
               "; its first is ", steps.front().step, ", its last ", steps.back().step);
    return static_cast<std::size_t>(found - steps.begin());
  }
  std::vector<std::size_t> order;
  for (std::size_t i = steps.size() > 2 ? 2 : 0; i < steps.size(); ++i) order.push_back(i);
  const auto middle = order.begin() + std::ssize(order) / 2;
  std::ranges::nth_element(order, middle, {}, [&](std::size_t i) { return steps[i].seconds; });
  return *middle;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

}  // namespace weft::timeline
