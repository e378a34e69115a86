#include "weft/benchmarks/gpu_model.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>

#include "weft/core/base/error.h"

namespace weft::bench {
namespace {

// Round figures that are assumed, not measured: what a large copy reaches, dense peaks without
// sparsity, and the least time from one kernel to the next.
constexpr std::array kGpus = {
    GpuFigures{.name = "h100",
               .copy_bandwidth = 3.0e12,
               .bf16 = 800e12,
               .tf32 = 400e12,
               .f32 = 55e12,
               .launch_us = 2.1,
               .graph_node_us = 1.3},
    GpuFigures{.name = "h200",
               .copy_bandwidth = 4.3e12,
               .bf16 = 790e12,
               .tf32 = 400e12,
               .f32 = 55e12,
               .launch_us = 2.1,
               .graph_node_us = 1.3},
};

struct Target {
  std::string_view gpu, work, precision;  // an empty precision: each
  double us;
};
constexpr std::array kTargets = {
    Target{"h100", "resnet50-b256", "bf16", 45000},
    Target{"h100", "autoencoder", "", 100},
    Target{"h100", "mlp", "", 25},
};

double peak_of(const GpuFigures& gpu, const StepNode& node) {
  if (node.type == "bf16") return gpu.bf16;
  if (node.type == "tf32") return gpu.tf32;
  WEFT_CHECK(node.type == "f32", Unsupported, "bench", "no peak of ", gpu.name, " for ", node.type,
             ", which ", node.name, " multiplies");
  return gpu.f32;
}

}  // namespace

std::span<const GpuFigures> model_gpus() { return kGpus; }

NodeFloor floor_of(const GpuFigures& gpu, const StepNode& node) {
  NodeFloor floor{node.in_graph ? gpu.graph_node_us : gpu.launch_us, Bound::launch};
  const auto at_least = [&](double seconds, Bound bound) {
    if (seconds * 1e6 > floor.us) floor = {seconds * 1e6, bound};
  };
  at_least(static_cast<double>(node.read + node.written) / (kBandwidthShare * gpu.copy_bandwidth),
           Bound::memory);
  if (node.operations > 0) {
    at_least(static_cast<double>(node.operations) / (kPeakShare * peak_of(gpu, node)),
             Bound::arithmetic);
  }
  return floor;
}

StepFloor floor_of(const GpuFigures& gpu, const std::vector<StepNode>& nodes) {
  StepFloor step;
  std::map<std::pair<std::string, std::string>, NodeGroup> groups;
  for (const StepNode& node : nodes) {
    const NodeFloor floor = floor_of(gpu, node);
    NodeGroup& group = groups[{node.name, node.type}];
    group.name = node.name;
    group.type = node.type;
    ++group.count;
    group.read += node.read;
    group.written += node.written;
    group.operations += node.operations;
    group.us += floor.us;
    ++step.nodes;
    step.us += floor.us;
    if (floor.bound != Bound::launch) continue;
    ++group.launch_bound;
    ++step.launch_bound;
    step.launch_bound_us += floor.us;
  }
  for (auto& [key, group] : groups) step.groups.push_back(std::move(group));
  std::ranges::sort(step.groups, [](const NodeGroup& a, const NodeGroup& b) {
    return std::tie(b.us, a.name, a.type) < std::tie(a.us, b.name, b.type);
  });
  return step;
}

std::optional<double> target_us(std::string_view gpu, std::string_view work,
                                std::string_view precision) {
  for (const Target& target : kTargets) {
    const bool fits = target.precision.empty() || target.precision == precision;
    if (fits && target.gpu == gpu && target.work == work) return target.us;
  }
  return std::nullopt;
}

std::size_t groups_over(const StepFloor& floor, double target_us) {
  double rest = floor.us;
  std::size_t count = 0;
  while (rest > target_us && count < floor.groups.size()) rest -= floor.groups[count++].us;
  return count;
}

}  // namespace weft::bench
