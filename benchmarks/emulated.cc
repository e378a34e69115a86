#include "weft/benchmarks/emulated.h"

#include <cstdio>
#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>

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
    "One step, by shapes alone: calls are counted and nothing runs.\n"
    "calls     what the host queues: kernels, library calls, copies and fills; of a captured step\n"
    "          one launch of its graph and what comes before it\n"
    "kernels   weft's own that run, in a graph or not; so too cuBLASLt, cuDNN, copies, fills\n"
    "MB        10^6 bytes that are named: by a kernel those of the blocks that its parameters "
    "point\n"
    "          into, each once and from the lowest address to its end, whether read, written or\n"
    "          both, so no fewer different ones than it touches, and more where it is given what "
    "it\n"
    "          does not use (images to batch norm's statistics_kernel and totals_kernel); by a\n"
    "          library call those that its descriptors describe, without workspace; by copies and\n"
    "          fills those that are read and written on the device\n"
    "peak      most MB in live tensors; of a captured step without those inside of its graph\n";

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

json count_step(const std::function<void()>& step) {
  for (int i = 0; i < 2; ++i) step();  // makes plans, gradients, optimiser state; then captures
  take_counts();
  reset_peak_memory(thread_state().device);
  step();
  json counts = take_counts();
  step();
  WEFT_CHECK(take_counts() == counts, Internal, "bench", "two steps differ in what they ask");
  counts["peak_bytes"] = memory_stats(thread_state().device).peak_in_use_bytes;
  for (json& kernel : counts["by_kernel"]) kernel["name"] = short_name(kernel["name"]);
  return counts;
}

void print(const std::string& title, const json& counts) {
  const auto calls = [&](const char* kind) { return counts[kind]["calls"].get<long>(); };
  const auto mb = [&](std::initializer_list<const char*> kinds) {
    double bytes = 0;
    for (const char* kind : kinds) bytes += counts[kind]["bytes"].get<double>();
    return bytes / 1e6;
  };
  std::printf("%-45s %6ld %8ld %9ld %6ld %7ld %6ld %11.1f %11.1f %10.1f %10.1f\n", title.c_str(),
              counts["host_calls"].get<long>(), calls("kernels"), calls("cublaslt"), calls("cudnn"),
              calls("copies"), calls("fills"), mb({"kernels"}), mb({"cublaslt", "cudnn"}),
              mb({"copies", "fills"}), counts["peak_bytes"].get<double>() / 1e6);
  std::fflush(stdout);
}

}  // namespace

json count_steps(const std::vector<std::string>& works) {
  WEFT_CHECK(weft_emulated_take_counts, Unsupported, "bench",
             "--emulated needs a build with emulated GPUs; use ./weft bench --emulated");
  const Scoped rule(&ThreadState::deterministic, true);
  std::printf("%s\n%-45s %6s %8s %9s %6s %7s %6s %11s %11s %10s %10s\n", kMeaning, "step", "calls",
              "kernels", "cuBLASLt", "cuDNN", "copies", "fills", "kernels MB", "library MB",
              "copied MB", "peak MB");
  json result = {{"meaning", kMeaning}};
  for (const std::string& name : works) {
    const WorkSpec spec = find_work(name);
    for (int channels_last = 0; channels_last <= int(spec.has_layouts()); ++channels_last) {
      const auto work = make_work(spec, {.channels_last = channels_last != 0});
      graph::Step captured = graph::capture([&] { work->step(); });
      const std::function<void()> steps[] = {[&] { work->step(); }, [&] { captured(); }};
      for (const bool in_graph : {false, true}) {
        json counts = count_step(steps[in_graph]);
        long calls = counts["graph_launches"].get<long>() - counts["replayed"].get<long>();
        for (const char* kind : {"kernels", "cublaslt", "cudnn", "copies", "fills"}) {
          calls += counts[kind]["calls"].get<long>();
        }
        counts["host_calls"] = calls;
        print(name + ", batch " + std::to_string(spec.images[0]) +
                  (channels_last ? ", channels last" : "") + (in_graph ? ", captured" : ""),
              counts);
        if (in_graph) counts.erase("by_kernel");  // same as in the row before
        counts.update({{"work", name},
                       {"batch_size", spec.images[0]},
                       {"channels_last", bool(channels_last)},
                       {"captured", in_graph}});
        result["rows"].push_back(counts);
      }
    }
  }
  return result;
}

}  // namespace weft::bench
