// Data parallelism (DDP) on large clusters: a model without any measurement.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "weft/tools/simulate/presets.h"

namespace weft::simulator {

enum class AllReduce { ring, tree, hierarchical };
inline constexpr AllReduce kAllReduces[] = {AllReduce::ring, AllReduce::tree,
                                            AllReduce::hierarchical};
const char* to_string(AllReduce algorithm);

/// The time of an all-reduce over n devices, as latency and as bytes (of the tensor) per second;
/// both 0 for one device. a and b are latency and bandwidth of the slowest link on the way, S is
/// the number of bytes:
///   ring          2 (n - 1) steps of a, 2 (n - 1) / n S / b (Patarasuk and Yuan 2009)
///   tree          2 ceil(log2 n) steps of a, 2 S / b: two pipelined binary trees, up and down
///                 (Sanders, Speck and Traeff 2009)
///   hierarchical  first a reduce-scatter by a ring in each node; then each device's part is
///   reduced
///                 between the nodes, by a ring (up to three nodes) or a tree; at the end an
///                 all-gather by a ring in each node
/// A step of a ring is within a node or between nodes; log2(per_node) levels of a tree are within a
/// node. Rings and trees also use all ports of a node at the same time. Throws InvalidArgument for
/// n < 1.
Link all_reduce_link(AllReduce algorithm, int n, const Cluster& cluster);

/// The work that one layer of a program gives a device.
struct LayerWork {
  double macs = 0;                           ///< per row, forward
  double input_bytes = 0, output_bytes = 0;  ///< per row
  double parameter_bytes = 0;
};
struct Work {
  std::string program;
  std::vector<LayerWork> layers;
  /// How many times the optimiser reads or writes the bytes of all parameters.
  double optimizer_passes = 3;
};

/// The parts of one DDP step.
struct ModelledStep {
  int devices = 1;
  std::int64_t rows = 0;  ///< per device
  double compute = 0;     ///< seconds, forward and backward
  double optimizer = 0;   ///< seconds
  double all_reduce = 0;  ///< seconds, all buckets together
  double exposed = 0;     ///< seconds of it that are left after the backward
  double seconds() const { return compute + optimizer + exposed; }
};

/// The time of a layer is that of its arithmetic or of its memory traffic, whichever is longer;
/// backward takes twice that. Gradients are reduced in DDP's buckets while backward runs.
ModelledStep model_step(const Work& work, std::int64_t rows, int devices, AllReduce algorithm,
                        const Cluster& cluster);

struct Scaling {
  std::string cluster, program;
  bool weak = true;  ///< `rows` for each device; else for all devices together
  std::int64_t rows = 0;
  struct Point {
    AllReduce algorithm;
    ModelledStep step;
    double images_per_second = 0;
    double efficiency = 0;  ///< images per second, divided by n times those of one device
  };
  std::vector<Point> points;  ///< for 1, 2, 4 ... devices, each with ring, tree and hierarchical
};

/// Up to `most` devices, or all of the cluster. Strong scaling ends where a device would get no
/// row. Throws InvalidArgument for rows or `most` below 1.
Scaling scale(const Work& work, const Cluster& cluster, bool weak, std::int64_t rows, int most);

std::string to_text(const Scaling& scaling);
nlohmann::json to_json(const Scaling& scaling);
/// Images per second of each device, over the devices, as SVG text: weak above strong.
std::string picture(const Scaling& weak, const Scaling& strong);

}  // namespace weft::simulator
