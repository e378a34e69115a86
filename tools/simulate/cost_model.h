// From what layers and links cost to the time of a training step, by each way of using several
// devices. Nothing is measured here: measure.h does, prediction_file.h reads and writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "weft/parallel/schedule.h"

namespace weft::simulator {

/// Something that depends on the number of rows: known for some numbers of them, in ascending
/// order, and affine between two neighbours.
struct Curve {
  std::vector<std::pair<double, double>> points;  ///< rows, value

  /// fixed + per_row rows
  static Curve affine(double fixed, double per_row);
  /// Beyond its ends the lines go on, but not below 0; one point is a constant. Throws
  /// InvalidArgument for no point, and for rows that do not ascend.
  double at(double rows) const;
  /// Beyond its ends constant.
  double within(double rows) const;
};

/// A message of so many bytes takes latency + bytes / bytes_per_second.
struct Link {
  double latency = 0;           ///< seconds
  double bytes_per_second = 0;  ///< 0: infinitely many
  double transfer(double bytes) const {
    return bytes_per_second > 0 ? bytes / bytes_per_second : 0;
  }
  double seconds(double bytes) const { return latency + transfer(bytes); }
};

/// Of one device, while the others idle.
struct LayerCost {
  std::string name;
  Curve forward, backward_input, backward_weight;  ///< seconds
  double output_bytes = 0;                         ///< of a row
  std::vector<double> parameter_bytes;             ///< of each parameter
};

/// Everything that a prediction depends on.
struct Costs {
  std::string program;
  int devices = 2;
  std::vector<LayerCost> layers;
  Curve loss;  ///< seconds, forward and backward
  double input_bytes = 0, target_bytes = 0;
  /// Seconds behind so many rows, which leave the caches as they are; of all parameters. Those of a
  /// part take their share of it, by bytes.
  Curve optimizer;
  /// How many times as long a device takes for so many rows while the others compute, too.
  Curve slowdown, optimizer_slowdown;
  /// The same of micro-batches of a step that are not its first one, where each device has a part
  /// of the layers: they find its parameters in the caches, and add to gradients.
  Curve further_forward, further_backward;
  /// Seconds of a whole step on one device that has all the cores; empty: devices have nothing to
  /// share.
  Curve undivided;
  double add_per_byte = 0;    ///< seconds, gradient += another one, or a copy of it on its device
  double scale_per_byte = 0;  ///< seconds, gradient *= number
  Link copy;                  ///< from one device to another
  double handoff = 0;         ///< seconds, from giving all devices work to having them done
  Link all_reduce;            ///< of all devices at once
  /// The devices themselves move the bytes of an all-reduce, so that it cannot overlap.
  bool all_reduce_computes = true;
  /// Layers of the first of two parts of the model, as the program cuts it; 0: where the halves
  /// take equally long.
  std::size_t first_part = 0;

  double parameter_bytes() const;
};

/// A summand of a step, and where it comes from.
struct Term {
  std::string name;
  double seconds = 0;
  std::string how;
};

/// How a step is run.
struct Way {
  /// one_device, undivided (one device with the cores of all), data_parallel, ddp, model_parallel
  /// or pipeline
  std::string engine;
  std::int64_t batch = 0;
  int devices = 1;
  // Of a pipeline alone.
  std::string schedule, checkpoint;
  int chunks = 0;
  friend bool operator==(const Way&, const Way&) = default;
};

/// "pipeline 1f1b, checkpoint never, 8 chunks"
std::string to_string(const Way& way);

struct Prediction {
  Way way;
  std::vector<Term> terms;
  double seconds() const;
};

/// Where `parts` parts of the layers begin, and the end, so that the one that takes longest takes
/// the least time.
std::vector<std::size_t> balanced_ends(const std::vector<double>& seconds, int parts);

/// Rows of the batch that one device takes, for all of them; others throw InvalidArgument.
Prediction one_device(const Costs& costs, std::int64_t batch);
/// Measured in one piece. Throws InvalidArgument where it was not.
Prediction undivided(const Costs& costs, std::int64_t batch);
Prediction data_parallel(const Costs& costs, std::int64_t batch);
/// `batch`: of all ranks together.
Prediction distributed_data_parallel(const Costs& costs, std::int64_t batch);
Prediction model_parallel(const Costs& costs, std::int64_t batch);
/// A stage for each device.
Prediction pipeline(const Costs& costs, std::int64_t batch, const std::string& schedule,
                    parallel::Recompute checkpoint, int chunks);

/// Every way that this many rows and layers allow, for each number of chunks; fastest first.
std::vector<Prediction> ranking(const Costs& costs, std::int64_t batch,
                                const std::vector<int>& chunks);

/// What of the all-reduces of a backward is left when the backward ends: `backward` has the seconds
/// of each layer from the first to the last, of which the last one is run first, and `costs` the
/// bytes of their parameters. A bucket is sent when the last of its gradients is there and the one
/// before it has been reduced.
struct Exposed {
  double seconds = 0;
  std::vector<double> bucket_bytes;  ///< in the order of sending
};
Exposed exposed_all_reduce(const std::vector<LayerCost>& layers,
                           const std::vector<double>& backward, const Link& all_reduce,
                           bool all_reduce_computes);

/// The table of them, with the arithmetic; the first one is the fastest.
std::string to_text(const Costs& costs, const std::vector<Prediction>& ranked);

}  // namespace weft::simulator
