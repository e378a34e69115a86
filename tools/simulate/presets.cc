#include "weft/tools/simulate/presets.h"

#include <algorithm>

#include "weft/core/base/error.h"

namespace weft::simulator {
namespace {

// weft has not run on these machines, so the shares of the published peaks are assumptions: what
// good programs reach in convolutions and in copies of memory.
constexpr double kOfFlops = 0.4, kOfMemory = 0.8;
const std::string kShares =
    "assumed, not published: 40 % of the peak arithmetic, 80 % of the peak memory bandwidth, 5 us "
    "for each layer at least";

// The latencies of NCCL's own model: hwLat, Ring/Simple, on NVLink and on the network; baseLat.
constexpr double kInside = 3.4e-6, kBetween = 9.6e-6, kBase = 8.4e-6, kLaunch = 5e-6;
const std::string kLatencies =
    "latency 3.4 us a step on NVLink, 9.6 us on the network, 8.4 us in any case: NCCL, "
    "src/graph/tuning.cc (hwLat and baseLat, Ring/Simple)";

const std::vector<std::string> kH100 = {
    "H100 SXM: 494.7 TFLOP/s in TF32 without sparsity, 80 GB, 3.35 TB/s, NVLink 900 GB/s both "
    "ways: "
    "NVIDIA "
    "H100 datasheet",
    "NVLink, of 450 GB/s one way 370 are left: github.com/NVIDIA/nccl-tests issue 212, a "
    "maintainer",
    kShares, kLatencies};

std::vector<std::string> with(std::vector<std::string> sources, const std::string& more) {
  sources.push_back(more);
  return sources;
}

const std::string kNdr =
    "InfiniBand NDR, 400 Gb/s: 46 to 48 GB/s a port: github.com/NVIDIA/nccl-tests issue 290, a "
    "maintainer";

Cluster h100(const std::string& name, const std::string& what) {
  return {.name = name,
          .what = what,
          .flops = kOfFlops * 494.7e12,
          .bytes_per_second = kOfMemory * 3.35e12,
          .launch = kLaunch,
          .memory = 80e9,
          .per_node = 8,
          .inside = {kInside, 370e9},
          .between = {kBetween, 47e9},
          .base = kBase,
          .sources = with(kH100, kNdr)};
}

std::vector<Cluster> make() {
  Cluster node = h100("h100-node", "one node of 8 H100 on NVLink");
  node.most_devices = 8;
  node.sources = kH100;
  Cluster one_port =
      h100("h100-1port", "nodes of 8 H100 on NVLink, one 400 Gb/s InfiniBand port a node");
  one_port.ports = 1;
  const Cluster a100{
      .name = "a100",
      .what = "nodes of 8 A100 on NVLink, a 200 Gb/s InfiniBand port for each (DGX A100)",
      .flops = kOfFlops * 156e12,
      .bytes_per_second = kOfMemory * 2.039e12,
      .launch = kLaunch,
      .memory = 80e9,
      .per_node = 8,
      .inside = {kInside, 235e9},
      .between = {kBetween, 23e9},
      .base = kBase,
      .sources = {"A100 SXM 80 GB: 156 TFLOP/s in TF32 without sparsity, 2039 GB/s: NVIDIA A100 "
                  "datasheet",
                  "NVLink: NCCL takes 235 GB/s on compute capability 8.0: src/graph/tuning.cc",
                  "InfiniBand HDR, 200 Gb/s: half of what is said of a 400 Gb/s port: "
                  "github.com/NVIDIA/nccl-tests issue 290",
                  kShares, kLatencies}};
  return {h100("h100", "nodes of 8 H100 on NVLink, a 400 Gb/s InfiniBand port for each (DGX H100)"),
          one_port, node, a100};
}

}  // namespace

const std::vector<Cluster>& presets() {
  static const std::vector<Cluster> all = make();
  return all;
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Cluster& preset : presets()) names.push_back(preset.name);
  return names;
}

const Cluster& find_preset(const std::string& name) {
  const auto found = std::ranges::find(presets(), name, &Cluster::name);
  WEFT_CHECK(found != presets().end(), InvalidArgument, "simulate", "there is no preset ", name);
  return *found;
}

}  // namespace weft::simulator
