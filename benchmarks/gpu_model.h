// The shortest time that a step could take on a GPU, by arithmetic alone: no GPU is measured.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft::bench {

/// What the model knows of a GPU.
struct GpuFigures {
  std::string_view name;
  double copy_bandwidth;   ///< bytes a second that a large copy reads and writes
  double bf16, tf32, f32;  ///< peak of dense products, operations a second
  double launch_us;        ///< least time from one kernel's begin to the next one's
  double graph_node_us;    ///< the same in a CUDA graph
};

/// The GPUs of the model: H100 and H200 (SXM).
std::span<const GpuFigures> model_gpus();

/// The share of a copy's bandwidth, or of the peak, that a large kernel is assumed to reach.
inline constexpr double kBandwidthShare = 0.9, kPeakShare = 0.65;

/// A kernel, library call, copy or fill of a step.
struct StepNode {
  std::string name;
  std::int64_t read = 0, written = 0;  ///< bytes of device memory, each once
  std::int64_t operations = 0;         ///< of products: 2 for a multiplication with its addition
  std::string type = {};               ///< what these multiply: f32, tf32 or bf16
  bool in_graph = true;
};

enum class Bound { launch, memory, arithmetic };

struct NodeFloor {
  double us = 0;
  Bound bound = Bound::launch;
};

/// max(launch, bytes / (0.9 bandwidth), operations / (0.65 peak)). Throws Unsupported if the model
/// has no peak for the type.
NodeFloor floor_of(const GpuFigures& gpu, const StepNode& node);

/// All nodes of one name and type; bytes, operations and floors are sums over them.
struct NodeGroup {
  std::string name, type;
  std::int64_t count = 0, launch_bound = 0;
  std::int64_t read = 0, written = 0, operations = 0;
  double us = 0;
};

struct StepFloor {
  std::int64_t nodes = 0, launch_bound = 0;
  double us = 0, launch_bound_us = 0;
  std::vector<NodeGroup> groups;  ///< the heaviest first
};

/// The sum over the nodes, which run one after the other.
StepFloor floor_of(const GpuFigures& gpu, const std::vector<StepNode>& nodes);

/// The time that a captured step of the work has to reach on the GPU; none for most.
std::optional<double> target_us(std::string_view gpu, std::string_view work,
                                std::string_view precision);

/// How many of the heaviest groups would have to go for the rest of the step to meet the target.
std::size_t groups_over(const StepFloor& floor, double target_us);

}  // namespace weft::bench
