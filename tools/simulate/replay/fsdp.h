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
  /// Seconds of a core, without what messages took of it.
  struct Rank {
    double late = 0;  ///< behind the first rank's forward
    /// Of each F of the schedule, and of the B that belongs to it.
    std::vector<double> forward, backward;
    std::vector<double> copy;  ///< of each unit: puts what was gathered into its parameters
    double optimizer = 0;
  };
  int number = 0;
  double seconds = 0;  ///< from the first rank's forward to the end of the last one's optimiser
  std::vector<Rank> ranks;
  /// Of each unit's messages, without what computing took from them.
  std::vector<double> gather, reduce;
};

/// The steps that are parallel::fsdp_step() of the last one's units.
struct FsdpTrace final : RecordedSteps {
  struct Unit {
    std::string name;
    double gather_bytes = 0, reduce_bytes = 0;  ///< of all ranks' parts
    /// Gathered in numbers of two bytes. Older traces do not say it: there gathers have half the
    /// bytes of reduce-scatters, so that a reduce_dtype of bf16 hides it.
    bool bf16 = false;

    /// Of its gather under the setting.
    double sent_bytes(const Setting& setting) const {
      return setting.bf16 && !bf16 ? gather_bytes / 2 : gather_bytes;
    }
  };
  std::vector<Unit> units;  ///< in the order of forward; the first is what is left of the model
  bool reshard = true;      ///< after forward
  std::vector<FsdpStep> steps;
  /// The cores that compute also move the bytes of messages: tensors are on the CPU.
  bool messages_compute = true;
  /// A step of a ring between two ranks, from the times of the messages.
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
  /// Each step as a schedule (parallel::fsdp_step) with its own times. A message takes what it
  /// took, as much longer or shorter as a ring of the setting's ranks, links and bytes is than the
  /// recorded one, and over a thin link also the time of its bytes. Where cores move bytes, what
  /// runs at once on a rank shares its core.
  Replayed replay(const Setting& setting) const override;
  std::vector<std::string> usual_settings() const override;
  std::vector<train::LogLogChart> charts() const override;

  double gathered_bytes(const Setting& setting) const;  ///< of all units once
  bool has_bf16() const;                                ///< in all units
  std::size_t gathers(const Setting& setting) const;
};

/// Throws Io for a trace without a whole step of fully_shard, and for one without the moments of
/// gathers, which older programs did not record.
FsdpTrace fsdp_trace(const TracedSpans& spans);

}  // namespace weft::simulator
