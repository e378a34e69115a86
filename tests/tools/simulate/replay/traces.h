// Traces made by hand, for replays.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "weft/tests/io/files.h"
#include "weft/tests/tools/command.h"
#include "weft/tools/simulate/replay/replay.h"

namespace weft::simulator {

/// A span of step 3.
inline nlohmann::json span(const char* category, const std::string& name, int rank, double begin_ms,
                           double end_ms, nlohmann::json args = nlohmann::json::object()) {
  args["step"] = 3;
  return {{"ph", "X"},
          {"cat", category},
          {"name", name},
          {"pid", rank},
          {"tid", 1},
          {"ts", begin_ms * 1e3},
          {"dur", (end_ms - begin_ms) * 1e3},
          {"args", std::move(args)}};
}

/// The trace without up to `most` spans of that name.
inline nlohmann::json without(const nlohmann::json& trace, const char* name, int most = 100) {
  nlohmann::json kept = nlohmann::json::array();
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    if (event["name"] != name || most-- <= 0) kept.push_back(event);
  }
  return {{"traceEvents", kept}};
}

/// The trace with the spans of the other, which there are of that step.
inline nlohmann::json with_step(nlohmann::json trace, const nlohmann::json& other, int step) {
  for (nlohmann::json event : other.at("traceEvents")) {
    event["args"]["step"] = step;
    trace["traceEvents"].push_back(std::move(event));
  }
  return trace;
}

/// The trace with its messages in groups along one axis of a mesh of four ranks, and with other
/// messages along another axis, in forward.
inline nlohmann::json in_mesh(nlohmann::json trace, const char* other_axis) {
  nlohmann::json& events = trace["traceEvents"];
  for (nlohmann::json& event : events) {
    if (event["cat"] == "comm") event["tid"] = 2;
  }
  for (const int r : {0, 1}) {
    events.push_back(span("comm", "all_to_all", r, 1, 1));
    events.back()["tid"] = 3;
    for (const auto& [thread, name] : {std::pair(2, "dp"), {3, other_axis}}) {
      events.push_back({{"ph", "M"},
                        {"name", "thread_name"},
                        {"pid", r},
                        {"tid", thread},
                        {"args", {{"name", std::string("comm ") + name + " of ranks 0, 1"}}}});
    }
  }
  return trace;
}

/// Reads traces of one engine.
template <class Trace>
class ReplayTest : public testing::CommandTest {
 protected:
  ReplayTest() : CommandTest("simulate") {}

  Trace read(const nlohmann::json& trace) {
    testing::write_file(folder.path("trace.json"), trace.dump());
    return read_file();
  }
  Trace read_file() { return dynamic_cast<const Trace&>(*read_trace(folder.path("trace.json"))); }
  Replayed replay(const nlohmann::json& trace, const std::string& setting) {
    const Trace steps = read(trace);
    return steps.replay(steps.parse(setting));
  }
  double ms_of(const nlohmann::json& trace, const std::string& setting) {
    return 1e3 * replay(trace, setting).seconds;
  }
};

}  // namespace weft::simulator
