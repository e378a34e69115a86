// Data parallelism (DDP) on clusters that are not here: a model, of which nothing is measured.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "weft/io/image.h"
#include "weft/tools/simulate/presets.h"

namespace weft::simulator {

enum class AllReduce { ring, tree, hierarchical };
inline constexpr AllReduce kAllReduces[] = {AllReduce::ring, AllReduce::tree,
                                            AllReduce::hierarchical};
const char* to_string(AllReduce algorithm);

/// What an all-reduce over n devices takes, as latency and bytes (of the tensor) per second;
/// nothing for one device. With a and b of the slowest link on the way, and S bytes:
///   ring          2 (n - 1) steps of a, 2 (n - 1) / n S / b (Patarasuk and Yuan 2009)
///   tree          2 ceil(log2 n) steps of a, 2 S / b: two pipelined binary trees, up and down
///                 (Sanders, Speck and Traeff 2009)
///   hierarchical  in each node a reduce-scatter and at the end an all-gather by rings, and between
///                 the nodes, of the part that each device has then, a ring (of up to three) or
///                 tree
/// A step of a ring is in a node or between nodes; of a tree log2(per_node) levels are in a node.
/// All ports of a node are used at the same time, by rings and trees too. Throws InvalidArgument
/// for n < 1.
Link all_reduce_link(AllReduce algorithm, int n, const Cluster& cluster);

/// What a program's layer asks of a device.
struct LayerWork {
  double macs = 0;                           ///< of a row, forward
  double input_bytes = 0, output_bytes = 0;  ///< of a row
  double parameter_bytes = 0;
};
struct Work {
  std::string program;
  std::vector<LayerWork> layers;
  /// Times that the optimiser reads or writes as many bytes as there are parameters.
  double optimizer_passes = 3;
};

/// A step of DDP.
struct ModelledStep {
  int devices = 1;
  std::int64_t rows = 0;  ///< of each device
  double compute = 0;     ///< seconds, forward and backward
  double optimizer = 0;   ///< seconds
  double all_reduce = 0;  ///< seconds, of all buckets
  double exposed = 0;     ///< seconds of it behind the backward
  double seconds() const { return compute + optimizer + exposed; }
};

/// Each layer takes as long as its arithmetic or its memory does, whichever is more, backward twice
/// that; gradients are reduced in DDP's buckets while backward runs.
ModelledStep model_step(const Work& work, std::int64_t rows, int devices, AllReduce algorithm,
                        const Cluster& cluster);

struct Scaling {
  std::string cluster, program;
  bool weak = true;  ///< so many rows for each device; else for all of them together
  std::int64_t rows = 0;
  struct Point {
    AllReduce algorithm;
    ModelledStep step;
    double images_per_second = 0;
    double efficiency = 0;  ///< of n devices: images per second beside n times one device's
  };
  std::vector<Point> points;  ///< for 1, 2, 4 ... devices, each by ring, tree and hierarchical
};

/// Up to `most` devices or the cluster's; strong scaling ends where a device would have no row.
/// Throws InvalidArgument for rows or `most` below 1.
Scaling scale(const Work& work, const Cluster& cluster, bool weak, std::int64_t rows, int most);

std::string to_text(const Scaling& scaling);
nlohmann::json to_json(const Scaling& scaling);
/// Images per second of each device, over the devices: weak above strong.
io::Image picture(const Scaling& weak, const Scaling& strong);

}  // namespace weft::simulator
