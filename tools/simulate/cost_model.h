// Computes the time of a training step from the costs of layers and links, for each way of using
// several devices. measure.h measures the costs; prediction_file.h reads and writes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "weft/parallel/schedule.h"

namespace weft::simulator {

/// A value that depends on the number of rows: known for some numbers of rows, in ascending order,
/// and linear between two neighbours.
struct Curve {
  std::vector<std::pair<double, double>> points;  ///< rows, value

  /// fixed + per_row * rows
  static Curve affine(double fixed, double per_row);
  /// Outside the known points the first and last lines continue, but not below 0; a single point is
  /// a constant. Throws InvalidArgument if there is no point, or if rows do not ascend.
  double at(double rows) const;
  /// Like at(), but constant outside the known points.
  double within(double rows) const;
};

/// A message of n bytes takes latency + n / bytes_per_second.
struct Link {
  double latency = 0;           ///< in seconds
  double bytes_per_second = 0;  ///< 0: infinite
  double transfer(double bytes) const {
    return bytes_per_second > 0 ? bytes / bytes_per_second : 0;
  }
  double seconds(double bytes) const { return latency + transfer(bytes); }
};

/// Measured on one device while the others idle.
struct LayerCost {
  std::string name;
  Curve forward, backward_input, backward_weight;  ///< seconds
  double output_bytes = 0;                         ///< per row
  std::vector<double> parameter_bytes;             ///< of each parameter
  std::vector<double> parameter_rows;              ///< size of its dimension 0; empty: all 1
  /// Which parameters tensor parallelism cuts, in whichever dimension; empty: none.
  std::vector<bool> parameter_is_cut;
  /// With tensor parallelism: the number of sums over the ranks after forward and after backward,
  /// and the bytes of each sum per row.
  int sums_forward = 0, sums_backward = 0;
  double sum_bytes = 0;
  bool own_unit = true;  ///< a unit of fully_shard; false: belongs to the model's unit
  Curve kept;            ///< bytes that it keeps from forward to backward
};

/// Everything that a prediction depends on.
struct Costs {
  std::string program;
  int devices = 2;
  std::vector<LayerCost> layers;
  Curve loss;  ///< seconds, forward and backward
  double input_bytes = 0, target_bytes = 0;
  /// Seconds of the optimiser for all parameters, after forward and backward of this number of
  /// rows, which decides what is left in the caches. A part of the parameters takes a share of this
  /// time, by bytes.
  Curve optimizer;
  /// The factor by which a device gets slower with this number of rows while the other devices
  /// compute, too.
  Curve slowdown, optimizer_slowdown;
  /// The same factor for the second and later micro-batches of a step, if each device has a part of
  /// the layers: they find its parameters in the caches, and add to existing gradients.
  Curve further_forward, further_backward;
  /// Seconds that a rank of tensor parallelism computes, with the loss, while all ranks work: the
  /// slowest rank in each step, without waiting for sums. Empty: nothing is cut.
  Curve cut_forward, cut_backward;
  /// Bytes per row of each sum over the ranks in the loss, if each rank has some of the classes.
  std::vector<double> loss_sums;
  /// Seconds of a whole step on one device that has all the cores; empty: devices do not share
  /// cores.
  Curve undivided;
  double add_per_byte = 0;    ///< seconds, to add a gradient to another or copy it on its device
  double scale_per_byte = 0;  ///< seconds, to multiply a gradient by a number
  Link copy;                  ///< from one device to another
  double handoff = 0;         ///< seconds, from giving work to all devices until all have finished
  Link all_reduce;            ///< of all devices at once, in shared memory, as buckets are
  Link sum;                   ///< an all-reduce of a tensor in a device's own memory
  Link broadcast;             ///< of such a tensor
  /// The devices' own cores move the bytes of an all-reduce, so it cannot overlap with computing.
  bool all_reduce_computes = true;
  double state_copies = 0;  ///< bytes of the optimiser's state for each byte of a parameter
  /// Bytes of activations and of gradients at the peak of a step on one device. step_bytes: of a
  /// plain step. further_bytes: of a step before which all gradients exist; these are not counted.
  Curve step_bytes, further_bytes;
  /// Number of layers in the first of two parts of the model, as the program cuts it; 0: cut where
  /// both parts take the same time.
  std::size_t first_part = 0;

  double parameter_bytes() const;
};

/// One term of the time of a step, and how it was computed.
struct Term {
  std::string name;
  double seconds = 0;
  std::string how;
};

/// How a step is run.
struct Way {
  /// one_device, undivided (one device with all cores), data_parallel, ddp, zero1, zero2, fsdp, tp,
  /// model_parallel or pipeline
  std::string engine;
  std::int64_t batch = 0;
  int devices = 1;
  // Only for a pipeline.
  std::string schedule, checkpoint;
  int chunks = 0;
  friend bool operator==(const Way&, const Way&) = default;
};

/// "pipeline 1f1b, checkpoint never, 8 chunks"
std::string to_string(const Way& way);

/// Bytes of the device that needs most.
struct MemoryUse {
  double peak = 0;                                     ///< at one time; 0: not known
  std::vector<std::pair<std::string, double>> most{};  ///< of each use, which may be at other times
};

struct Prediction {
  Way way;
  std::vector<Term> terms;
  MemoryUse memory{};
  double seconds() const;
};

/// Cuts the layers into `parts` parts so that the slowest part takes the least time. Returns the
/// beginning of each part, and the end.
std::vector<std::size_t> balanced_ends(const std::vector<double>& seconds, int parts);

/// One device takes all rows of the batch. Throws InvalidArgument for a batch below 1.
Prediction one_device(const Costs& costs, std::int64_t batch);
/// Measured as a whole. Throws InvalidArgument if it was not measured.
Prediction undivided(const Costs& costs, std::int64_t batch);
Prediction data_parallel(const Costs& costs, std::int64_t batch);
/// `batch`: rows of all ranks together.
Prediction distributed_data_parallel(const Costs& costs, std::int64_t batch);
/// DDP with ZeroRedundancyOptimizer.
Prediction zero1(const Costs& costs, std::int64_t batch);
/// parallel::fully_shard; without `reshard` the parameters stay whole until backward: ZeRO-2.
Prediction fully_sharded(const Costs& costs, std::int64_t batch, bool reshard);
/// Whether tensor parallelism cuts any layer of the program.
bool cuts_layers(const Costs& costs);
/// parallel::parallelize over all devices. Each device has all rows.
Prediction tensor_parallel(const Costs& costs, std::int64_t batch);
Prediction model_parallel(const Costs& costs, std::int64_t batch);
/// One stage per device.
Prediction pipeline(const Costs& costs, std::int64_t batch, const std::string& schedule,
                    parallel::Recompute checkpoint, int chunks);

/// All ways that this number of rows and layers allows, the pipelines for each number of chunks;
/// fastest first.
std::vector<Prediction> ranking(const Costs& costs, std::int64_t batch,
                                const std::vector<int>& chunks);

/// The time of all-reduces that is left when the backward ends. `backward` has the seconds of each
/// layer from the first to the last; the last one runs first. `costs` has the bytes of their
/// parameters. A bucket is sent when the last of its gradients is ready and the bucket before it
/// has been reduced.
struct Exposed {
  double seconds = 0;
  std::vector<double> bucket_bytes;  ///< in the order of sending
};
Exposed exposed_all_reduce(const std::vector<LayerCost>& layers,
                           const std::vector<double>& backward, const Link& all_reduce,
                           bool all_reduce_computes);

/// A table of the predictions with their terms; the first is the fastest. With a limit for the
/// memory of a device, in bytes, it also says which of them fit.
std::string to_text(const Costs& costs, const std::vector<Prediction>& ranked,
                    std::int64_t limit = 0);

}  // namespace weft::simulator
