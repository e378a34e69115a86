#include "weft/benchmarks/emulated.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "weft/autograd/autocast.h"
#include "weft/benchmarks/gpu_model.h"
#include "weft/benchmarks/work.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/capture.h"
#include "weft/core/runtime/runtime.h"
#include "weft/core/runtime/thread_state.h"

// Defined in emulator/emulator.cc.
extern "C" __attribute__((weak)) const char* weft_emulated_take_counts();

namespace weft::bench {
namespace {

using nlohmann::json;

constexpr const char* kMeaning =
    "One step, by shapes alone: nothing was measured on a GPU.\n"
    "calls     what the host queues: kernels, library calls, copies and fills; of a captured step\n"
    "          one launch of its graph and what comes before it\n"
    "kernels   weft's own that run, in a graph or not; so too cuBLASLt, cuDNN, copies, fills\n"
    "MB        10^6 bytes of device memory, each once for a kernel that reads it and once for one\n"
    "          that writes it: of weft's kernels what they touch, in pages of 4096 bytes or a "
    "256th\n"
    "          of a block; of library calls their operands, without workspace\n"
    "peak      most MB in live tensors; of a captured step without those inside of its graph\n"
    "floor     the sum over all nodes of max(launch, bytes / (0.9 bandwidth),\n"
    "          operations / (0.65 peak)): 2.1 us for a launch, 1.3 us in a graph; h100: 3.0 TB/s,\n"
    "          800 TFLOP/s bf16, 400 TF32, 55 f32; h200: 4.3 TB/s, 790, 400, 55. Only the "
    "products\n"
    "          of cuBLASLt and cuDNN count as operations\n";

json take_counts() {
  const Device device = thread_state().device;
  runtime(device).synchronize_device(device.index);
  return json::parse(weft_emulated_take_counts());
}

// Shortens a kernel's signature to "normalize_kernel<float>".
std::string short_name(std::string name) {
  for (const std::string prefix : {"weft::cuda::", "(anonymous namespace)::", "weft::"}) {
    for (auto at = name.find(prefix); at != std::string::npos; at = name.find(prefix)) {
      name.erase(at, prefix.size());
    }
  }
  if (name.starts_with("void ")) name.erase(0, 5);
  int depth = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '<') ++depth;
    if (name[i] == '>') --depth;
    if (name[i] == '(' && depth == 0) return name.substr(0, i);
  }
  return name;
}

std::vector<StepNode> nodes_of(const json& counts) {
  std::vector<StepNode> nodes;
  for (const json& node : counts["nodes"]) {
    nodes.push_back({.name = short_name(node["name"]),
                     .read = node["read"],
                     .written = node["written"],
                     .operations = node["operations"],
                     .type = node["type"],
                     .in_graph = node["in_graph"] == 1});
  }
  return nodes;
}

json count_step(const std::function<void()>& step) {
  for (int i = 0; i < 2; ++i) step();  // makes plans, gradients, optimiser state; then captures
  take_counts();
  reset_peak_memory(thread_state().device);
  step();
  json counts = take_counts();
  step();
  WEFT_CHECK(take_counts() == counts, Internal, "bench", "two steps differ in what they ask");
  counts["peak_bytes"] = memory_stats(thread_state().device).peak_in_use_bytes;
  return counts;
}

void print(const std::string& title, const json& counts) {
  const auto calls = [&](const char* kind) { return counts[kind]["calls"].get<long>(); };
  const auto mb = [&](std::initializer_list<const char*> kinds, const char* side) {
    double bytes = 0;
    for (const char* kind : kinds) bytes += counts[kind][side].get<double>();
    return bytes / 1e6;
  };
  std::printf("%-47s %5ld %7ld %8ld %5ld %6ld %5ld %10.1f %10.1f %10.1f %10.1f %10.1f %10.1f\n",
              title.c_str(), counts["host_calls"].get<long>(), calls("kernels"), calls("cublaslt"),
              calls("cudnn"), calls("copies"), calls("fills"), mb({"kernels"}, "read"),
              mb({"kernels"}, "written"), mb({"cublaslt", "cudnn"}, "read"),
              mb({"cublaslt", "cudnn"}, "written"),
              mb({"copies", "fills"}, "read") + mb({"copies", "fills"}, "written"),
              counts["peak_bytes"].get<double>() / 1e6);
  std::fflush(stdout);
}

void print_head() {
  std::printf("%s\n%-47s %5s %7s %8s %5s %6s %5s %10s %10s %10s %10s %10s %10s\n", kMeaning, "step",
              "calls", "kernels", "cuBLASLt", "cuDNN", "copies", "fills", "MB: read", "written",
              "libs read", "written", "copied", "peak");
  std::fflush(stdout);
}

/// Prints the sums on each GPU, and by how much the target is missed.
void print_sums(const json& floors) {
  for (const auto& [gpu, floor] : floors.items()) {
    std::printf("    %s: %.1f us, of it %.1f us in %ld launch-bound nodes of %ld", gpu.c_str(),
                floor["us"].get<double>(), floor["launch_bound_us"].get<double>(),
                floor["launch_bound"].get<long>(), floor["nodes"].get<long>());
    if (floor.contains("target_us")) {
      const double target = floor["target_us"], over = floor["us"].get<double>() - target;
      std::printf("; the target, %.0f us, is %s by %.1f us", target, over > 0 ? "missed" : "met",
                  std::abs(over));
      if (over > 0) {
        const std::size_t lines = floor["groups_over"].size();
        std::printf(", by the nodes of the first %s below",
                    lines == 1 ? "line" : (std::to_string(lines) + " lines").c_str());
      }
    }
    std::printf("\n");
  }
}

constexpr std::size_t kPrinted = 12;  // groups of a step; more if more make it miss the target

void print_groups(const json& groups, std::size_t printed) {
  std::printf("    %10s %10s %6s %8s %10s %10s %10s %5s  %s\n", "h100 us", "h200 us", "nodes",
              "launch-b", "MB read", "written", "GFLOP", "", "name");
  const auto line = [](double h100, double h200, long count, long launches, double read,
                       double written, double operations, const std::string& type,
                       const std::string& name) {
    std::printf("    %10.1f %10.1f %6ld %8ld %10.2f %10.2f %10.2f %5s  %s\n", h100, h200, count,
                launches, read / 1e6, written / 1e6, operations / 1e9, type.c_str(), name.c_str());
  };
  double h100 = 0, h200 = 0, read = 0, written = 0, operations = 0;
  long count = 0, launches = 0;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const json& g = groups[i];
    if (i < printed) {
      line(g["h100_us"], g["h200_us"], g["count"], g["h100_launch_bound"], g["read"], g["written"],
           g["operations"], g["type"], g["name"]);
      continue;
    }
    h100 += g["h100_us"].get<double>();
    h200 += g["h200_us"].get<double>();
    count += g["count"].get<long>();
    launches += g["h100_launch_bound"].get<long>();
    read += g["read"].get<double>();
    written += g["written"].get<double>();
    operations += g["operations"].get<double>();
  }
  if (count > 0) line(h100, h200, count, launches, read, written, operations, "", "all others");
  std::fflush(stdout);
}

/// The floors of the step on each GPU and, by name, of its nodes, in the order of the first GPU.
json model(const std::vector<StepNode>& nodes, const std::string& work,
           const std::string& precision) {
  json result;
  std::map<std::pair<std::string, std::string>, std::size_t> places;  // by name and type
  for (const GpuFigures& gpu : model_gpus()) {
    const std::string name(gpu.name);
    const StepFloor floor = floor_of(gpu, nodes);
    json& sums = result["floor"][name] = {{"us", floor.us},
                                          {"nodes", floor.nodes},
                                          {"launch_bound", floor.launch_bound},
                                          {"launch_bound_us", floor.launch_bound_us}};
    if (const auto target = target_us(gpu.name, work, precision)) {
      sums["target_us"] = *target;
      sums["groups_over"] = json::array();
      for (std::size_t i = 0; i < groups_over(floor, *target); ++i) {
        sums["groups_over"].push_back(floor.groups[i].name);
      }
    }
    for (const NodeGroup& g : floor.groups) {
      const auto [place, is_new] = places.try_emplace({g.name, g.type}, places.size());
      if (is_new) {
        result["groups"].push_back({{"name", g.name},
                                    {"type", g.type},
                                    {"count", g.count},
                                    {"read", g.read},
                                    {"written", g.written},
                                    {"operations", g.operations}});
      }
      result["groups"][place->second].update(
          {{name + "_us", g.us}, {name + "_launch_bound", g.launch_bound}});
    }
  }
  return result;
}

/// Counts, prints and returns the rows of one work in one layout: plain and captured.
json count_work(const WorkSpec& spec, const std::string& precision, bool channels_last) {
  const PrecisionScope scope(precision);
  const auto work = make_work(spec, {.channels_last = channels_last, .amp = precision == "bf16"});
  // Around all steps, as in the programs (train/program.cc).
  const autograd::Autocast autocast(thread_state().device.type, {.enabled = precision == "bf16"});
  graph::Step captured = graph::capture([&] { work->step(); });
  const std::function<void()> steps[] = {[&] { work->step(); }, [&] { captured(); }};
  json rows;
  for (const bool in_graph : {false, true}) {
    json counts = count_step(steps[in_graph]);
    long calls = counts["graph_launches"].get<long>() - counts["replayed"].get<long>();
    for (const char* kind : {"kernels", "cublaslt", "cudnn", "copies", "fills"}) {
      calls += counts[kind]["calls"].get<long>();
    }
    counts["host_calls"] = calls;
    print(spec.name + ", " + precision + ", batch " + std::to_string(spec.images[0]) +
              (channels_last ? ", channels last" : "") + (in_graph ? ", captured" : ""),
          counts);
    counts.update(model(nodes_of(counts), in_graph ? spec.name : "", precision));
    counts.erase("nodes");
    print_sums(counts["floor"]);
    if (in_graph) {
      const std::size_t over = counts["floor"]["h100"].value("groups_over", json::array()).size();
      print_groups(counts["groups"], std::max(kPrinted, over));
    } else {
      counts.erase("groups");  // the captured step has the same
    }
    counts.update({{"work", spec.name},
                   {"precision", precision},
                   {"batch_size", spec.images[0]},
                   {"channels_last", channels_last},
                   {"captured", in_graph}});
    rows.push_back(counts);
  }
  return rows;
}

}  // namespace

json count_steps(const std::vector<std::string>& works,
                 const std::vector<std::string>& precisions) {
  WEFT_CHECK(weft_emulated_take_counts, Unsupported, "bench",
             "--emulated needs a build with emulated GPUs; use ./weft bench --emulated");
  const Scoped rule(&ThreadState::deterministic, true);
  print_head();
  json result = {{"meaning", kMeaning}};
  for (const std::string& name : works) {
    const WorkSpec spec = find_work(name);
    for (const std::string& precision : precisions) {
      for (int channels_last = 0; channels_last <= int(spec.has_layouts()); ++channels_last) {
        for (json& row : count_work(spec, precision, channels_last != 0)) {
          result["rows"].push_back(std::move(row));
        }
      }
    }
  }
  return result;
}

}  // namespace weft::bench
