// A step of fully_shard as a trace shows it, and what it would take under other settings: with
// parameters that stay whole behind forward, other links, ranks.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "weft/tools/simulate/cost_model.h"
#include "weft/tools/simulate/replay/steps.h"
#include "weft/tools/simulate/replay/traced_spans.h"

namespace weft::simulator {

struct FsdpStep {
  /// The seconds that a rank's work needs of a core, without the time that messages took from it.
  struct Rank {
    double late = 0;  ///< how long after the first rank its forward began
    /// The seconds of each F of the schedule, and of the B that belongs to it.
    std::vector<double> forward, backward;
    std::vector<double> copy;  ///< for each unit, to copy what was gathered into its parameters
    double optimizer = 0;
  };
  int number = 0;
  double seconds = 0;  ///< from the first rank's forward to the end of the last one's optimiser
  std::vector<Rank> ranks;
  /// The seconds of each unit's messages, without the time that computing took from them.
  std::vector<double> gather, reduce;
};

/// The steps of a trace that follow parallel::fsdp_step() with the units of the last such step.
struct FsdpTrace final : RecordedSteps {
  struct Unit {
    std::string name;
    double gather_bytes = 0, reduce_bytes = 0;  ///< of all ranks' parts
    /// Whether gathers send numbers of two bytes. Older traces do not say it: they are taken to be
    /// if gathers have half the bytes of reduce-scatters, which is not so where reduce_dtype is
    /// bf16, too.
    bool bf16 = false;

    /// The bytes of its gather under the setting.
    double sent_bytes(const Setting& setting) const {
      return setting.bf16 && !bf16 ? gather_bytes / 2 : gather_bytes;
    }
  };
  std::vector<Unit> units;  ///< in the order of forward; the first is what is left of the model
  bool reshard = true;      ///< after forward
  std::vector<FsdpStep> steps;
  /// The cores that compute also move the bytes of messages: tensors are on the CPU.
  bool messages_compute = true;
  /// Latency and bandwidth of one step of a ring, between two ranks, fitted to the times of the
  /// messages.
  Link gather_link, reduce_link;

  Engine engine() const override { return Engine::fsdp; }
  int ranks() const override { return static_cast<int>(steps.front().ranks.size()); }
  std::vector<double> step_seconds() const override;
  std::string what() const override;
  std::string model(const Setting& setting) const override;
  const char* counted() const override { return "gathers"; }
  const char* kept() const override {
    return "keep reshard_after_forward as recorded: the other way does not save ";
  }
  /// Runs each step of the trace again, with its own times, as the schedule parallel::fsdp_step. A
  /// message takes its recorded time, scaled by how much longer or shorter a ring takes with the
  /// setting's ranks and bytes; with links of another machine, the time of a ring of these. A thin
  /// link adds the time of the message's bytes on it. Where cores move the bytes, everything that a
  /// rank does at the same time shares its core.
  Replayed replay(const Setting& setting) const override;
  std::vector<std::string> usual_settings() const override;
  std::vector<train::LogLogChart> charts() const override;

  double gathered_bytes(const Setting& setting) const;  ///< of one gather of every unit
  bool has_bf16() const;                                ///< whether all units gather in bf16
  std::size_t gathers(const Setting& setting) const;
};

/// Throws Io for a trace without a whole step of fully_shard, and for one of an older weft, which
/// did not record when gathers were asked for.
FsdpTrace fsdp_trace(const TracedSpans& spans);

}  // namespace weft::simulator
