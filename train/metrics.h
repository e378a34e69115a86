// metrics.json: the results of a run, for people and for scripts.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "weft/train/checkpoint.h"
#include "weft/train/options.h"

namespace weft::train {

/// Figures of a test by name: "accuracy", "mse".
using TestFigures = std::vector<std::pair<std::string, double>>;

struct EpochMetrics {
  double mean_loss = 0;
  double sum_loss = 0;
  double seconds = 0;
  double images_per_second = 0;
  TestFigures test = {};  ///< after the epoch; empty: not tested
};

struct Metrics {
  std::string example;
  std::string device;
  std::string dtype;
  int threads = 0;
  std::uint64_t seed = 0;
  std::int64_t batch_size = 0;                                ///< of each rank
  std::string optimizer;                                      ///< its type: "SGD"; empty: not known
  double lr = 0;                                              ///< as the program was given it
  bool amp = false;                                           ///< autocast to bf16
  std::string float32_matmul_precision, conv_fp32_precision;  ///< core/runtime/float32_precision.h
  int world_size = 1;
  std::string backend;  ///< by which the ranks talk; empty in a world of one
  FlagValues flags;     ///< the program's own
  /// The program's own figures. Programs of several ranks note the cost of rank 0's communication,
  /// pipelines only the first:
  ///   bytes_sent    in the whole run, including the first weights and tests; with shared memory as
  ///                 many as a ring would send
  ///   allreduce_ms  mean per step: from the first bucket sent to the last one reduced
  ///   exposed_ms    the part of it after the last gradient, which backward did not hide
  TestFigures notes;
  std::vector<double> losses;  ///< one per step, means over the ranks
  std::string loss_name;       ///< what `losses` are when there are more; else empty
  std::vector<NamedLosses> more_losses;
  std::vector<EpochMetrics> epochs;
  TestFigures test;  ///< the last ones
  double step_ms_median = 0;
  double train_seconds = 0;
  std::string cpu;      ///< its model
  std::string version;  ///< of weft
  std::string date;     ///< at the end: "2026-03-01T12:00:00Z"
  std::string commit;
};

/// "losses" is a list or, where they have names, an object of lists. Numbers that JSON lacks (NaN,
/// infinities) become null. Throws Io.
void write_metrics(const std::string& path, const Metrics& metrics);

/// For keeping epochs in a checkpoint; from_text throws InvalidArgument.
std::string epochs_to_text(const std::vector<EpochMetrics>& epochs);
std::vector<EpochMetrics> epochs_from_text(const std::string& text);

/// Now, in UTC: "2026-03-01T12:00:00Z".
std::string utc_date();

/// The source's commit as ./weft passes it on (WEFT_COMMIT), else "unknown".
std::string source_commit();

}  // namespace weft::train
