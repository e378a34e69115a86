#include "weft/benchmarks/operations.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "weft/benchmarks/timing.h"
#include "weft/core/runtime/file.h"

namespace weft::bench {
namespace {

struct Event {
  std::string category, name;
  double begin, end;  // microseconds
  double inner = 0;   // of which in spans inside this one
};

// Each before those inside it.
std::vector<Event> events_of(const Tracer& tracer) {
  const std::string path = temporary_folder() + "/weft-bench-" + std::to_string(getpid()) + ".json";
  tracer.write(path);
  std::ifstream file(path);
  const nlohmann::json trace = nlohmann::json::parse(file);
  std::filesystem::remove(path);
  std::vector<Event> events;
  for (const nlohmann::json& e : trace["traceEvents"]) {
    if (e["ph"] != "X") continue;
    const double begin = e["ts"];
    events.push_back({e["cat"], e["name"], begin, begin + e["dur"].get<double>()});
  }
  std::ranges::sort(events, [](const Event& a, const Event& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  return events;
}

}  // namespace

std::vector<OperationRow> measure_operations(Work& work, int steps) {
  Tracer tracer;
  double total = 0;
  {
    const Scoped traced(&ThreadState::tracer, &tracer);
    total = time_ms([&] {
      for (int i = 0; i < steps; ++i) work.step();
    });
  }
  std::vector<Event> events = events_of(tracer);
  // Only operations: not the modules and phases around them.
  std::erase_if(events, [](const Event& event) {
    return event.category == "forward" || event.category == "phase";
  });
  std::map<std::string, OperationRow> rows;
  std::vector<Event> open;
  int backward = 0;  // calls in backward
  double covered = 0;
  const auto close_until = [&](double now) {
    while (!open.empty() && open.back().end <= now) {
      const Event event = open.back();
      open.pop_back();
      if (event.category == "backward") --backward;
      const double us = event.end - event.begin;
      (open.empty() ? covered : open.back().inner) += us;
      const bool in_backward = event.category == "backward" || backward > 0;
      const std::string name = event.category == "optim" ? "optimiser" : event.name;
      OperationRow& row = rows[name + (in_backward ? " backward" : "")];
      row.calls += event.category == "backward" ? 0 : 1.0 / steps;
      row.ms += (us - event.inner) / 1e3 / steps;
    }
  };
  for (const Event& event : events) {
    close_until(event.begin);
    if (event.category == "backward") ++backward;
    open.push_back(event);
  }
  close_until(std::numeric_limits<double>::infinity());

  std::vector<OperationRow> result;
  for (auto& [name, row] : rows) {
    row.name = name;
    result.push_back(row);
  }
  result.push_back({"between operations", 0, total / steps - covered / 1e3 / steps});
  std::ranges::sort(result, [](const auto& a, const auto& b) { return a.ms > b.ms; });
  return result;
}

double choosing_ms(const Tracer& tracer) {
  double us = 0, end = 0;
  for (const Event& event : events_of(tracer)) {
    // A convolution's candidate may choose among products.
    if (event.category != "choice" || event.end <= end) continue;
    us += event.end - event.begin;
    end = event.end;
  }
  return us / 1e3;
}

}  // namespace weft::bench
