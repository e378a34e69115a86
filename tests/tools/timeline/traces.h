// Traces made by hand.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "weft/parallel/simulate.h"
#include "weft/tests/io/files.h"

namespace weft::timeline {

class TraceFile {
 public:
  /// In milliseconds.
  void add(const std::string& category, const std::string& name, double begin, double end,
           int thread, nlohmann::json args, int rank = 0) {
    events_.push_back({{"ph", "X"},
                       {"cat", category},
                       {"name", name},
                       {"pid", rank},
                       {"tid", thread},
                       {"ts", begin * 1000},
                       {"dur", (end - begin) * 1000},
                       {"args", args}});
  }

  /// As Pipeline tells of a step on devices `device`0, 1 ... that took as long as `timeline`
  /// says.
  void add_pipeline(int step, const parallel::Timeline& timeline, double begin,
                    const std::string& device = "cpu:", int first_thread = 3, int rank = 0) {
    using Kind = parallel::Action::Kind;
    const auto name = [](Kind kind) {
      switch (kind) {
        case Kind::forward: return "forward";
        case Kind::recompute: return "recompute";
        case Kind::backward_input: return "backward_input";
        case Kind::backward_weight: return "backward_weight";
        default: return "backward";
      }
    };
    for (const parallel::TimedAction& timed : timeline.actions) {
      add("pipeline", name(timed.action.kind), begin + timed.begin * 1e3, begin + timed.end * 1e3,
          first_thread + timed.device,
          {{"step", step},
           {"device", device + std::to_string(timed.device)},
           {"stage", timed.action.stage},
           {"micro_batch", timed.action.micro_batch}},
          rank);
    }
    add("pipeline", "step", begin, begin + timeline.end * 1e3, 0, {{"step", step}}, rank);
  }

  /// As DataParallel tells of a forward and backward of 10 ms on two devices.
  void add_data_parallel(int step, double begin) {
    const auto on = [&](int device, const char* category, const char* name, double from, double to,
                        int replica = -1) {
      nlohmann::json args = {{"step", step}, {"device", "cpu:" + std::to_string(device)}};
      if (replica >= 0) args["replica"] = replica;
      add(category, name, begin + from, begin + to, 3 + device, args);
    };
    const auto caller = [&](const char* category, const char* name, double from, double to) {
      add(category, name, begin + from, begin + to, 0, {{"step", step}});
    };
    caller("parallel", "scatter", 0, 1);
    on(1, "parallel", "replicate", 1.5, 2, 1);
    caller("parallel", "replicate", 1, 2);
    on(0, "parallel", "parallel_apply", 2, 4, 0);
    on(1, "parallel", "parallel_apply", 2, 3.5, 1);
    caller("parallel", "parallel_apply", 2, 4);
    caller("parallel", "gather", 4, 4.5);
    on(0, "backward", "linear", 5, 8);
    on(0, "backward", "relu", 6, 7);  // within the other
    on(1, "backward", "linear", 6, 10);
    caller("phase", "backward", 5, 10);
  }

  /// As two ranks tell of a step of 50 ms, of which rank 0 waits 5 and rank 1 10.
  void add_ddp(int step, double begin) {
    for (int rank = 0; rank < 2; ++rank) {
      const auto span = [&](const char* category, const char* name, double from, double to,
                            nlohmann::json args = {}) {
        args["step"] = step;
        add(category, name, begin + from, begin + to, 0, args, rank);
      };
      span("forward", "Sequential", 0, 10);
      span("backward", "linear", 10, 30);
      span("ddp", "send bucket", 29, 30, {{"bucket", 0}, {"bytes", 400}});
      span("comm", "all_reduce", 31, 40, {{"module", "bucket 0"}, {"bytes", 400}});
      span("ddp", "wait for buckets", rank ? 30 : 35, 40);
      span("phase", "backward", 10, 41);
      span("optim", "step", 41, 50);
    }
  }

  std::string text() const { return nlohmann::json{{"traceEvents", events_}}.dump(); }
  std::string write(const testing::TempFolder& folder) const {
    testing::write_file(folder.path("trace.json"), text());
    return folder.path("trace.json");
  }

 private:
  nlohmann::json events_ = nlohmann::json::array();
};

}  // namespace weft::timeline
