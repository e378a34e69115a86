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
  std::string optimizer;                                      ///< its type: "SGD"; empty if unknown
  double lr = 0;                                              ///< as given to the program
  bool amp = false;                                           ///< autocast to bf16
  std::string float32_matmul_precision, conv_fp32_precision;  ///< core/runtime/float32_precision.h
  bool graph = false;                                         ///< whether steps were captured
  int world_size = 1;
  std::string backend;  ///< with which the ranks communicate; empty for one rank
  FlagValues flags;     ///< the program's own
  /// The program's own figures. Programs of several ranks note here what rank 0's communication
  /// costs; without buckets only the first figure:
  ///   bytes_sent    in the whole run, including the first weights and tests; with shared memory as
  ///                 many as a ring would send
  ///   allreduce_ms  mean per step: from the first bucket sent to the last one reduced
  ///   wait_ms       the part of it after the last gradient, which backward did not hide
  ///   exposed_ms    the same of the rank that waits least in each step, since its gradients come
  ///                 last: what it waits for is communication, and the rest of wait_ms is rank 0's
  ///                 waiting for slower ranks
  TestFigures notes;
  /// By rank or, in one process, by device that held something: the most bytes that training has
  /// held for each use, by the names of MemoryOwner ("whole_parameters"), and for all uses at one
  /// time ("peak", which is below the sum of the others if they were not there at the same time).
  /// Taken at the end of the first epoch that this process trains, so without the tests and saves
  /// at the end of an epoch.
  std::vector<TestFigures> memory;
  std::vector<double> losses;  ///< one per step, means over the ranks
  std::string loss_name;       ///< the name of `losses` if there are several; else empty
  std::vector<NamedLosses> more_losses;
  std::vector<EpochMetrics> epochs;
  TestFigures test;  ///< the last figures
  double step_ms_median = 0;
  double train_seconds = 0;
  std::string cpu;      ///< model name
  std::string version;  ///< of weft
  std::string date;     ///< at the end: "2026-03-01T12:00:00Z"
  std::string commit;
};

/// "losses" is a list or, if the losses have names, an object of lists. NaN and infinities, which
/// JSON does not have, become null. Throws Io.
void write_metrics(const std::string& path, const Metrics& metrics);

/// To keep epochs in a checkpoint; from_text throws InvalidArgument.
std::string epochs_to_text(const std::vector<EpochMetrics>& epochs);
std::vector<EpochMetrics> epochs_from_text(const std::string& text);

/// The present time in UTC: "2026-03-01T12:00:00Z".
std::string utc_date();

/// The commit of the source that ./weft passes on (WEFT_COMMIT), else "unknown".
std::string source_commit();

}  // namespace weft::train
