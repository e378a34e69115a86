#include "weft/tools/simulate/replay/replay.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "weft/tools/json_file.h"
#include "weft/tools/simulate/check.h"
#include "weft/tools/simulate/cost_terms.h"
#include "weft/tools/simulate/replay/ddp.h"
#include "weft/tools/simulate/replay/fsdp.h"
#include "weft/tools/simulate/replay/pipeline.h"
#include "weft/tools/simulate/replay/traced_spans.h"

namespace weft::simulator {

namespace {

std::unique_ptr<RecordedSteps> steps_of(const TracedSpans& spans) {
  if (spans.has("pipeline")) return std::make_unique<PipelineTrace>(pipeline_trace(spans));
  if (spans.has("fully_shard")) return std::make_unique<FsdpTrace>(fsdp_trace(spans));
  return std::make_unique<DdpTrace>(ddp_trace(spans));
}

// How much more a is than b, in percent.
double more(double a, double b) { return b > 0 ? 100 * (a / b - 1) : 0; }

}  // namespace

std::unique_ptr<RecordedSteps> read_trace(const std::string& path) {
  return tools::read_json(path, kOp, "no trace that --trace wrote",
                          [](const nlohmann::json& file) -> std::unique_ptr<RecordedSteps> {
                            const TracedSpans spans = spans_of(file);
                            auto steps = steps_of(spans);
                            const double seconds = steps->seconds();
                            WEFT_CHECK(seconds > 0 && std::isfinite(seconds), Io, kOp,
                                       "its steps take no time: ", seconds, " s");
                            return steps;
                          });
}

std::string to_text(const RecordedSteps& trace, const std::vector<Replayed>& rows) {
  std::string text = concat(trace.step_seconds().size(), " steps of ", trace.what(),
                            "; recorded: ", ms(trace.seconds()), "\n");
  char line[200];
  std::snprintf(line, sizeof line, "%-32s %13s %12s %12s %8s %12s %8s\n", "setting",
                trace.counted(), "step", "exposed", "change", "measured", "off by");
  text += line;
  const double base = rows.front().seconds;
  const double longest = std::ranges::max(rows, {}, &Replayed::seconds).seconds;
  int measured = 0, near = 0;
  const Replayed* best = &rows.front();
  for (const Replayed& row : rows) {
    std::string beside = "-", off = "-";
    if (row.measured > 0) {
      beside = ms(row.measured);
      off = number(more(row.seconds, row.measured), "%+.1f%%");
      const bool counts = &row != &rows.front();
      measured += counts;
      near += counts && row.is_right();
    }
    const double part = longest > 0 ? row.seconds / longest : 0;
    std::snprintf(line, sizeof line, " %13d %12s %12s %+7.1f%% %12s %8s  ", row.count,
                  ms(row.seconds).c_str(), ms(row.exposed).c_str(), more(row.seconds, base),
                  beside.c_str(), off.c_str());
    std::string name = row.setting.text;
    name.resize(std::max(name.size(), std::size_t{32}), ' ');
    text +=
        concat(name, line, std::string(static_cast<std::size_t>(std::lround(20 * part)), '#'),
               row.extrapolated ? " extrapolated" : "", row.settled ? "" : " not settled", '\n');
    const bool choosable = !row.extrapolated && !row.setting.thin_link && row.setting.slow_rank < 0;
    if (choosable && row.seconds < best->seconds) best = &row;
  }
  // Steps differ by about as much anyway, so less is not worth a change.
  constexpr double kWorth = 0.02;
  if (best->seconds < (1 - kWorth) * base) {
    text += concat("use ", best->setting.text, ": a step of ", ms(best->seconds), ", ",
                   number(-more(best->seconds, base), "%.1f"), " % less\n");
  } else {
    text += concat(trace.kept(), 100 * kWorth, " %\n");
  }
  if (measured > 0) {
    text += concat(near, " of ", measured, " measured rows lie within ", 100 * kTolerance, " %\n");
  }
  return text;
}

ReplayReport report_replays(const RecordedSteps& trace, const std::string& path,
                            const std::vector<std::string>& words) {
  WEFT_CHECK(!trace.has_thin_links, InvalidArgument, kOp, path,
             " was recorded with a thin link; record it without WEFT_FAULT");
  std::vector<Replayed> rows = {trace.replay({})};
  rows[0].measured = trace.seconds();
  ReplayReport report;
  for (const std::string& word : words.empty() ? trace.usual_settings() : words) {
    const std::size_t at = word.find('@');
    Replayed& row = rows.emplace_back(trace.replay(trace.parse(word.substr(0, at))));
    if (at == std::string::npos) continue;
    const std::string other = word.substr(at + 1);
    std::error_code none;  // a trace that is not there has an error of its own
    WEFT_CHECK(other != path && !std::filesystem::equivalent(other, path, none), InvalidArgument,
               kOp, other, " is the trace itself, expected that of another run, under ",
               row.setting.text);
    const auto run = read_trace(other);
    const std::string fault = trace.fault_of(*run, row.setting);
    WEFT_CHECK(fault.empty(), InvalidArgument, kOp, other, ' ', fault, " as of ", path, " under ",
               row.setting.text);
    row.measured = run->seconds();
    report.good = report.good && row.is_right();
  }
  report.text = to_text(trace, rows);
  return report;
}

std::string picture(const RecordedSteps& trace) { return train::log_log_picture(trace.charts()); }

}  // namespace weft::simulator
