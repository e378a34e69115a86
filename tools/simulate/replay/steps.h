// The recorded steps of an engine, which can be replayed: ddp.h, fsdp.h, pipeline.h.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "weft/tools/simulate/replay/setting.h"
#include "weft/train/charts.h"

namespace weft::simulator {

struct Replayed {
  Setting setting;
  int count = 0;        ///< of buckets, gathers or micro-batches
  double seconds = 0;   ///< of a step: the median over the steps of the trace
  double exposed = 0;   ///< how long of it ranks wait for others, also the median
  double measured = 0;  ///< in another trace, recorded under that setting; 0: none
  bool extrapolated = false;
  bool settled = true;  ///< false: times of what shares cores or links still change

  /// Within kTolerance of what was measured, if anything was.
  bool is_right() const;
};

/// The steps of a trace that are like the last one.
class RecordedSteps {
 public:
  virtual ~RecordedSteps() = default;

  virtual Engine engine() const = 0;
  /// The number of ranks; for a pipeline within one process, of its devices.
  virtual int ranks() const = 0;
  virtual std::vector<double> step_seconds() const = 0;
  /// "DDP on 2 ranks, 3 gradients in 1 bucket"
  virtual std::string what() const = 0;
  /// Describes a run of this model under the setting by what its trace would show, without a thin
  /// link.
  virtual std::string model(const Setting& setting) const = 0;
  /// Why the run cannot be one of this model under the setting: "is of ..., expected ..."; nothing
  /// if it can be. A trace does not show a slow rank, or that links are another machine's.
  virtual std::string fault_of(const RecordedSteps& run, const Setting& setting) const;
  /// What Replayed::count counts.
  virtual const char* counted() const = 0;
  /// What to do if no setting is better.
  virtual const char* kept() const = 0;
  virtual Replayed replay(const Setting& setting) const = 0;
  /// The settings that are tried if the user names none.
  virtual std::vector<std::string> usual_settings() const = 0;
  /// Charts of a step's time over settings.
  virtual std::vector<train::LogLogChart> charts() const = 0;

  double seconds() const;  ///< the median of the steps
  Setting parse(std::string_view setting) const {
    return parse_setting(setting, ranks(), engine());
  }
  /// A line through the times of a step, in milliseconds: at xs[i] under settings[i].
  train::PointCurve curve(std::string name, const std::vector<double>& xs,
                          const std::vector<Setting>& settings) const;
  /// Two charts that most engines have: over the bandwidth of the links and over the ranks, with a
  /// line for each of these settings.
  train::LogLogChart over_bandwidth(const std::vector<Setting>& lines) const;
  train::LogLogChart over_ranks(const std::vector<Setting>& lines) const;

  bool has_thin_links = false;
};

}  // namespace weft::simulator
