// A step of a pipeline, over ranks or over the devices of one process, as a trace shows it, and
// what it would take in other schedules, with other micro-batches and links.
#pragma once

#include <string>
#include <vector>

#include "weft/parallel/schedule.h"
#include "weft/parallel/simulate.h"
#include "weft/tools/simulate/replay/steps.h"
#include "weft/tools/simulate/replay/traced_spans.h"

namespace weft::simulator {

struct PipelineStep {
  int number = 0;
  double seconds = 0;  ///< from the first rank's begin to the end of the last one's optimiser
  /// By micro-batch, then by stage. Where backward is not split into I and W, `backward_input` has
  /// the times of B, and `backward_weight` zeros. Where F runs twice, the second time as R,
  /// `forward` has the mean of both.
  std::vector<parallel::StageCosts::MicroBatch> micro_batches;
  std::vector<double> begin;  ///< when each place can begin, but for what others send it
  double transfer = 0;        ///< from the end of an action until another place has its result
  double tail = 0;            ///< from the end of the last action to the end of the step
};

/// The steps of a trace with the schedule of its last whole step.
struct PipelineTrace final : RecordedSteps {
  parallel::Schedule schedule;         ///< as recorded; a place is a device of it
  std::string known_as;                ///< its name, if ./weft schedule knows it
  parallel::Recompute recompute = {};  ///< which micro-batches were recomputed, at least in part
  std::vector<int> rank_of_place;
  bool over_ranks = false;       ///< else over devices of one process
  bool splits_backward = false;  ///< it has I and W
  std::vector<double> bytes;     ///< of a micro-batch's message from each stage to the next one
  /// The same for the values alone, and for all micro-batches together.
  std::vector<double> batch_bytes;
  std::vector<PipelineStep> steps;

  Engine engine() const override { return Engine::pipeline; }
  int ranks() const override;
  /// How many devices run stages: one per rank, or several.
  int places() const { return static_cast<int>(schedule.devices.size()); }
  std::vector<double> step_seconds() const override;
  std::string what() const override;
  std::string model(const Setting& setting) const override;
  /// Also compares the bytes of all micro-batches' messages, at the boundaries of stages that both
  /// runs have.
  std::string fault_of(const RecordedSteps& run, const Setting& setting) const override;
  const char* counted() const override { return "micro-batches"; }
  const char* kept() const override { return "keep the recorded schedule: no other here saves "; }
  /// Runs each step of the trace again by parallel::simulate(), with each micro-batch's own times,
  /// in the recorded schedule or in that of the setting. For a schedule with fewer stages,
  /// neighbours are put together; for one with more, each stage is cut into equal parts. With
  /// another number of micro-batches each of them takes the same share of the whole batch's time.
  Replayed replay(const Setting& setting) const override;
  std::vector<std::string> usual_settings() const override;
  std::vector<train::LogLogChart> charts() const override;
};

/// Which micro-batches recompute, at least in part.
parallel::Recompute recompute_of(const parallel::Schedule& schedule);
/// The schedule's name in ./weft schedule; empty if it has none.
std::string name_of(const parallel::Schedule& schedule);

/// Throws Io for a trace without a whole step of a pipeline, for one of several pipelines, and for
/// one whose stages are cut by fully_shard.
PipelineTrace pipeline_trace(const TracedSpans& spans);

}  // namespace weft::simulator
