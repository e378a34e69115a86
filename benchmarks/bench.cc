// weft compared with PyTorch: blocks of steps of the two alternate, so that a slow moment of the
// machine affects both, and the ratio is the median over the pairs.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "weft/autograd/ops.h"
#include "weft/benchmarks/emulated.h"
#include "weft/benchmarks/floor.h"
#include "weft/benchmarks/latency.h"
#include "weft/benchmarks/loader.h"
#include "weft/benchmarks/operations.h"
#include "weft/benchmarks/peer.h"
#include "weft/benchmarks/program.h"
#include "weft/benchmarks/scaling.h"
#include "weft/benchmarks/sides.h"
#include "weft/benchmarks/timing.h"
#include "weft/benchmarks/work.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/file.h"
#include "weft/core/runtime/parallel.h"
#include "weft/core/runtime/runtime.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/trace/trace.h"
#include "weft/tensor/creation.h"
#include "weft/train/environment.h"

namespace weft::bench {
namespace {

using nlohmann::json;

struct Options {
  std::string peer;
  std::string peer_script = "benchmarks/peer.py";
  std::string peer_device = {};  // filled in: weft's device
  std::vector<std::string> works = {
      "autoencoder", "mlp", "cnn", "resnet50", "dcgan", "transformer", "transformer-infer"};
  std::vector<std::string> precisions = {"default"};
  std::string device = "cpu";
  bool scaling = false;
  bool loader = false;
  bool latency = false;
  bool emulated = false;
  bool floor = false;
  bool operations = false;
  bool ieee = false;
  bool capture = false;
  bool compile = false;
  bool tiny = false;
  int threads = core_count();
  int pairs = 31;
  std::string out = {};
};

// How long each configuration is tried, on either side, beyond a first block of steps.
constexpr double kMostTrialSeconds = 1;

// Waits for the device: steps only queue work on a GPU. Every timed region ends with it.
void finish() {
  const Device device = thread_state().device;
  runtime(device).synchronize_device(device.index);
}

// Prints a line on stderr for each longer task, to show the progress.
void say(const json& row, const std::string& what) {
  std::fprintf(stderr, "bench: %s, %s: %s\n", row["work"].get<std::string>().c_str(),
               row["precision"].get<std::string>().c_str(), what.c_str());
}

// weft's fastest configuration: all team sizes up to the number of cores and the layouts of the
// batches are tried, as on the peer's side.
struct Prepared {
  std::unique_ptr<Work> work;
  WorkOptions options;
  int threads = 1;
  double ms = 0;
  // The time of the very first step, and of what it chose: the kernels that no earlier work of the
  // process, and no earlier process, has chosen.
  double first_ms = 0, choosing_ms = 0;
  std::string name;
  json tried;
};

Prepared prepare(const WorkSpec& spec, bool amp, const Options& options) {
  Prepared best;
  json tried;
  const int most_threads = thread_state().device.is_cpu() ? options.threads : 1;
  for (int threads = 1; threads <= most_threads; threads *= 2) {
    for (int channels_last = 0; channels_last <= int(spec.has_layouts()); ++channels_last) {
      set_num_threads(threads);
      const WorkOptions work_options = {.channels_last = bool(channels_last), .amp = amp};
      auto work = make_work(spec, work_options);
      Tracer of_first_step;
      Tracer* tracer = &of_first_step;
      const auto step = [&] {
        const Scoped traced(&ThreadState::tracer, std::exchange(tracer, nullptr));
        work->step();
      };
      const auto [first_ms, ms] = time_first_and_fastest(
          step, finish, spec.block, options.tiny ? 1 : 4, kMostTrialSeconds * 1e3);
      // The other configurations remember most of the first one's choices.
      if (!best.work) best.first_ms = first_ms, best.choosing_ms = choosing_ms(of_first_step);
      const std::string config =
          "threads=" + std::to_string(threads) + (channels_last ? " channels_last" : "");
      tried[config] = ms;
      if (!best.work || ms < best.ms)
        best = {std::move(work), work_options,     threads, ms,
                best.first_ms,   best.choosing_ms, config,  {}};
    }
  }
  release_cached_memory(thread_state().device);  // others' memory: the peer may use the same GPU
  best.tried = tried;
  return best;
}

// The peak of a step: parameters, gradients, optimiser state, batches, and temporary tensors.
std::int64_t peak_bytes(const WorkSpec& spec, const WorkOptions& options) {
  const Device device = thread_state().device;
  const std::int64_t others = memory_stats(device).in_use_bytes;  // the work that is timed
  auto work = make_work(spec, options);
  work->step();
  work->step();
  reset_peak_memory(device);
  work->step();
  return memory_stats(device).peak_in_use_bytes - others;
}

double op_us(int count) {
  const Tensor a = ones({1}).set_requires_grad(), b = ones({1}).set_requires_grad();
  for (int i = 0; i < 1000; ++i) a* b;
  return time_ms([&] {
           for (int i = 0; i < count; ++i) a* b;
           finish();
         }) /
         count * 1e3;
}

// A GPU's clock and queue need longer measurements than a step of microseconds.
void lengthen_blocks(std::vector<Side>& sides) {
  constexpr double kStretchMs = 100;
  for (Side& side : sides) {
    const double ms = side.time(side.block) / side.block;
    if (thread_state().device.is_cpu()) continue;
    side.block = static_cast<int>(std::clamp(kStretchMs / ms, 1.0, 10000.0));
  }
}

json as_json(const Quartiles& q) {
  return {{"low", q.low}, {"median", q.median}, {"high", q.high}};
}

// The medians of the sides, and of the ratios between sides that correspond to each other.
void report(const std::vector<Side>& sides, json& row) {
  struct Pair {
    const char *key, *theirs, *mine;
  };
  static constexpr Pair kPairs[] = {{"ratio", "peer", "weft"},
                                    {"ieee_ratio", "peer", "ieee"},
                                    {"compiled_ratio", "compiled", "weft"},
                                    {"graphed_ratio", "graphed", "captured"},
                                    {"compiled_captured_ratio", "compiled", "captured"}};
  for (const Side& side : sides) {
    const Quartiles q = quartiles(side.ms);
    row[side.key + "_ms"] = as_json(q);
    std::printf("%-14s %-8s %-28s %10.4f ms [%.4f, %.4f]", row["work"].get<std::string>().c_str(),
                row["precision"].get<std::string>().c_str(), side.label.c_str(), q.median, q.low,
                q.high);
    for (const Pair& pair : kPairs) {
      const auto mine = std::ranges::find(sides, pair.mine, &Side::key);
      if (side.key != pair.theirs || mine == sides.end()) continue;
      const Quartiles r = quartiles(ratios(side, *mine));
      row[pair.key] = as_json(r);
      std::printf("   %.2fx [%.2f, %.2f] that of %s", r.median, r.low, r.high, mine->label.c_str());
    }
    std::printf("\n");
  }
  for (const Side& side : sides) {
    const std::string warning = spread_warning(side);
    if (warning.empty()) continue;
    row["spread"] = "wide";
    std::printf("%-14s %s\n", row["work"].get<std::string>().c_str(), warning.c_str());
  }
  std::printf(
      "%-14s %-8s first step: weft %.0f ms, choosing kernels that nobody before it chose "
      "%.0f ms of it",
      row["work"].get<std::string>().c_str(), row["precision"].get<std::string>().c_str(),
      row["weft_first_ms"].get<double>(), row["weft_choosing_ms"].get<double>());
  if (row.contains("peer_first_ms")) {
    std::printf("; PyTorch %.0f ms", row["peer_first_ms"].get<double>());
  }
  std::printf("\n");
}

void bench_work(const WorkSpec& spec, const std::string& precision, const Options& options,
                Peer* peer, json& row) {
  const PrecisionScope scope(precision);
  const bool amp = precision == "bf16";
  say(row, "trying weft's configurations");
  Prepared weft_side = prepare(spec, amp, options);
  row["batch_size"] = spec.images[0];
  row["weft_config"] = weft_side.name;
  row["weft_tried"] = weft_side.tried;
  row["weft_first_ms"] = weft_side.first_ms;
  row["weft_choosing_ms"] = weft_side.choosing_ms;
  if (peer) {
    say(row, "trying PyTorch's configurations");
    const json answer = ask(*peer, {{"cmd", "prepare"},
                                    {"work", to_json(spec)},
                                    {"precision", precision},
                                    {"threads", options.threads},
                                    {"most_seconds", kMostTrialSeconds}});
    row["peer_config"] = answer["config"];
    row["peer_tried"] = answer["tried"];
    row["peer_first_ms"] = answer["first_ms"];
  }
  set_num_threads(weft_side.threads);
  const auto time = [](Work& work, int steps) {
    return time_ms([&] {
      for (int i = 0; i < steps; ++i) work.step();
      finish();
    });
  };
  std::vector<Side> sides = {{"weft", "weft (" + weft_side.name + ")",
                              [&](int steps) { return time(*weft_side.work, steps); }, spec.block}};
  if (options.ieee) {
    sides.push_back({"ieee", "weft, ieee convolutions",
                     [&](int steps) {
                       const Scoped convolutions(&ThreadState::allow_tf32_conv, false);
                       return time(*weft_side.work, steps);
                     },
                     spec.block});
    sides.back().time(2);  // chooses its plans
  }
  // Adds a side besides the two that always exist; it may fail alone.
  const auto add = [&](const std::string& key, const std::string& label, auto make) {
    try {
      sides.push_back({key, label, make(), spec.block});
    } catch (const Error& error) {
      row[key + "_error"] = error.what();
      std::printf("%-14s %-8s %s: failed: %s\n", spec.name.c_str(), precision.c_str(),
                  label.c_str(), error.what());
    }
  };
  std::unique_ptr<Work> captured;
  if (options.capture) {
    add("captured", "weft, captured", [&] {
      WorkOptions work_options = weft_side.options;
      work_options.captured = true;
      captured = make_work(spec, work_options);
      time(*captured, 2);  // the second step is captured
      return [&](int steps) { return time(*captured, steps); };
    });
  }
  if (peer) {
    const auto run = [peer](const char* side) {
      return [peer, side](int steps) {
        return ask(*peer, {{"cmd", "run"}, {"side", side}, {"steps", steps}})["ms"].get<double>();
      };
    };
    add("peer", "PyTorch (" + row["peer_config"].get<std::string>() + ")",
        [&] { return run("plain"); });
    if (options.capture) {
      add("graphed", "PyTorch, graphed", [&] {
        say(row, "PyTorch captures a graph");
        ask(*peer, {{"cmd", "graph"}});
        return run("graphed");
      });
    }
    // Compiles after all else is chosen, since it takes minutes.
    if (options.compile) {
      add("compiled", "PyTorch, compiled", [&] {
        say(row, "PyTorch compiles (minutes)");
        row["compiled_seconds"] = ask(*peer, {{"cmd", "compile"}})["seconds"];
        return run("compiled");
      });
    }
  }
  lengthen_blocks(sides);
  std::string round;
  double round_ms = 0;
  for (Side& side : sides) {
    round += (round.empty() ? "" : ", ") + std::to_string(side.block) + " steps of " + side.label;
    round_ms += side.time(side.block);
  }
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.1f s", options.pairs * round_ms / 1e3);
  say(row,
      "timing " + std::to_string(options.pairs) + " rounds of " + round + ": about " + seconds);
  alternate(sides, options.pairs);
  report(sides, row);
  std::fflush(stdout);
  const double ms = row["weft_ms"]["median"];
  captured.reset();  // the next sides may need its memory

  say(row, "measuring memory");
  row["weft_peak_bytes"] = peak_bytes(spec, weft_side.options);
  if (peer) {
    row["peer_peak_bytes"] = ask(*peer, {{"cmd", "memory"}})["peak_bytes"];
    std::printf("%-14s %-8s peak of live tensor bytes: weft %.2f MiB, PyTorch %.2f MiB\n",
                spec.name.c_str(), precision.c_str(),
                row["weft_peak_bytes"].get<double>() / 1048576,
                row["peer_peak_bytes"].get<double>() / 1048576);
  }
  if (options.operations) {
    say(row, "timing each operation");
    for (const OperationRow& o : measure_operations(*weft_side.work, std::max(2, spec.block))) {
      std::printf("    %-28s %7.1f calls %9.3f ms %5.1f %%\n", o.name.c_str(), o.calls, o.ms,
                  100 * o.ms / ms);
      row["operations"].push_back({{"name", o.name}, {"calls", o.calls}, {"ms", o.ms}});
    }
  }
  if (options.floor) {
    say(row, "timing each kernel alone");
    set_num_threads(options.threads);
    FloorTimes sum;
    const std::vector<FloorRow> floor = measure_floor(spec.name);
    if (floor.empty()) return say(row, "there is no list of its kernels");
    for (const FloorRow& f : floor) {
      std::printf("    %-24s %8.3f ms, %8.3f ms with cold caches\n", f.kernel.c_str(), f.ms.warm,
                  f.ms.cold);
      row["floor"].push_back({{"kernel", f.kernel}, {"ms", f.ms.warm}, {"cold_ms", f.ms.cold}});
      sum.warm += f.ms.warm;
      sum.cold += f.ms.cold;
    }
    row["floor_ms"] = sum.warm;
    row["floor_cold_ms"] = sum.cold;
    std::printf("    %-24s %8.3f ms, the step takes %.2fx of it; with cold caches %.3f ms, %.2fx\n",
                "sum", sum.warm, ms / sum.warm, sum.cold, ms / sum.cold);
  }
}

/// Starts the peer, if one is wanted; its versions go into the result.
std::unique_ptr<Peer> start_peer(const Options& options, json& result) {
  if (options.peer.empty()) {
    std::printf("no --peer PYTHON given, so weft alone\n");
    return nullptr;
  }
  auto peer = std::make_unique<Peer>(std::vector{options.peer, options.peer_script});
  const std::string device =
      options.peer_device.empty() ? to_string(thread_state().device) : options.peer_device;
  result["peer"] = ask(*peer, {{"cmd", "hello"}, {"device", device}});
  result["peer"]["device"] = device;
  std::printf("PyTorch %s (%s)\n", result["peer"]["torch"].get<std::string>().c_str(),
              result["peer"]["capability"].get<std::string>().c_str());
  return peer;
}

void write(const Options& options, const json& result) {
  write_file_atomically(options.out, to_text(result));
}

/// The rows of `--work`, each written as soon as it is complete, and the time of one operation.
/// Returns how many rows failed.
int compare(const Options& options, json& result) {
  const std::unique_ptr<Peer> peer = start_peer(options, result);
  std::fflush(stdout);
  int failed = 0;
  for (const std::string& name : options.works) {
    for (const std::string& precision : options.precisions) {
      const WorkSpec spec = options.tiny ? tiny(find_work(name)) : find_work(name);
      json row = {{"work", name}, {"precision", precision}};
      try {
        bench_work(spec, precision, options, peer.get(), row);
      } catch (const Error& error) {
        ++failed;
        row["error"] = error.what();
        std::printf("%-14s %-8s failed: %s\n", name.c_str(), precision.c_str(), error.what());
      }
      std::fflush(stdout);
      release_cached_memory(thread_state().device);
      result["rows"].push_back(row);
      write(options, result);
    }
  }

  set_num_threads(1);
  std::vector<double> mine, theirs;
  const int count = options.tiny ? 10 : 20000;
  for (int i = 0; i < 15; ++i) {
    mine.push_back(op_us(count));
    if (peer) theirs.push_back(ask(*peer, {{"cmd", "op"}, {"count", count}})["us"].get<double>());
  }
  result["op_us"]["weft"] = quartiles(mine).median;
  std::printf("1-element multiply with grad: weft %.3f us", quartiles(mine).median);
  if (peer) {
    result["op_us"]["peer"] = quartiles(theirs).median;
    std::printf(", PyTorch %.3f us", quartiles(theirs).median);
  }
  std::printf("\n");
  return failed;
}

int run(const Options& options) {
  make_folder_of(options.out);
  const Device device(options.emulated ? "cuda" : options.device);
  runtime(device);  // throws if it does not exist
  WEFT_CHECK(device.is_cpu() || !options.floor, InvalidArgument, "bench",
             "--floor times the CPU's kernels, not those of ", device);
  WEFT_CHECK(device.is_cuda() || !options.capture, InvalidArgument, "bench",
             "--capture needs a CUDA device: a captured step saves launches, of which ", device,
             " has none");
  for (const std::string& work : options.works) find_work(work);
  thread_state().device = device;
  json result = describe_machine();
  result.update({{"device", to_string(device)}, {"dtype", "f32"}});
  if (options.tiny) result["tiny"] = true;
  std::printf("%s, %d cores, %s, f32\n", cpu_model().c_str(), core_count(),
              to_string(device).c_str());
  int failed = 0;
  if (options.scaling) {
    set_num_threads(options.threads);
    result["threads"] = options.threads;
    result.update(run_scaling(std::filesystem::path(options.out).replace_extension().string()));
  } else if (options.loader) {
    const std::unique_ptr<Peer> peer = start_peer(options, result);
    result.update(run_loader(options.pairs, peer.get()));
  } else if (options.latency) {
    const std::unique_ptr<Peer> peer = start_peer(options, result);
    LatencyOptions latency = {.threads = options.threads};
    if (options.tiny) latency.window_s = 0.05, latency.pairs = 1;
    result.update(run_latency(latency, peer.get()));
  } else if (options.emulated) {
    result.update(count_steps(options.works, options.precisions));
  } else {
    failed = compare(options, result);
  }
  write(options, result);
  std::printf("written to %s\n", options.out.c_str());
  return failed > 0;
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  weft::bench::Options options;
  CLI::App app("weft against PyTorch on this machine", "./weft bench");
  CLI::Option* scaling = app.add_flag(
      "--scaling", options.scaling,
      "instead: time and memory over the batch (autoencoder) and the depth (ResNet), weft alone");
  CLI::Option* loader = app.add_flag("--loader", options.loader,
                                     "instead: images a second of the data loader, on the CPU");
  loader->excludes(scaling);
  CLI::Option* emulated = app.add_flag(
      "--emulated", options.emulated,
      "instead: the launches, library calls and bytes of a step on a GPU, counted on an emulated "
      "one, and the least time of these by arithmetic");
  emulated->excludes(scaling)->excludes(loader);
  CLI::Option* latency = app.add_flag(
      "--latency", options.latency,
      "instead: one call of a small model after the other, alone and beside a busy loop per core");
  latency->excludes(scaling)->excludes(loader)->excludes(emulated);
  const auto not_scaling = [&](CLI::Option* option) { return option->excludes(scaling); };
  const auto not_loader = [&](CLI::Option* option) { return option->excludes(loader); };
  const auto neither = [&](CLI::Option* option) { return not_loader(not_scaling(option)); };
  not_scaling(app.add_option("--peer", options.peer, "Python with torch (tools/peer-setup)"));
  // ./weft always sets it.
  app.add_option("--peer-script", options.peer_script, "the peer's program")->capture_default_str();
  CLI::Option* work = neither(app.add_option(
      "--work", options.works,
      "autoencoder, mlp, cnn, resnet50, dcgan, "
      "transformer, transformer-infer; for a GPU, and --emulated, cnn-full, resnet50-b256"));
  work->capture_default_str();
  CLI::Option* precision = neither(
      app.add_option("--precision", options.precisions,
                     "a row for each: default (PyTorch's), f32, tf32, bf16 (autocast); with "
                     "--emulated without it the last three"));
  precision->check(CLI::IsMember(std::vector<std::string>{"default", "f32", "tf32", "bf16"}))
      ->capture_default_str();
  not_loader(app.add_option("--device", options.device, "cpu, cuda or cuda:N"))
      ->capture_default_str();
  neither(app.add_flag("--floor", options.floor, "also time a step's kernels one by one"));
  neither(app.add_flag("--operations", options.operations,
                       "also divide a step's time among its operations"));
  neither(app.add_flag("--ieee", options.ieee,
                       "also time weft with ieee convolutions: on the CPU without Winograd's"));
  neither(app.add_flag("--capture", options.capture, "also time both sides' steps as CUDA graphs"));
  neither(app.add_flag("--tiny", options.tiny,
                       "rehearse: nets and batches so small that the figures mean nothing"));
  not_scaling(app.add_option("--peer-device", options.peer_device, "where it is not weft's"));
  neither(app.add_flag("--compile", options.compile,
                       "also time the peer's best configuration under torch.compile"));
  not_loader(
      app.add_option("--threads", options.threads, "most threads to try; with --scaling, all used"))
      ->check(CLI::Range(1, 256));
  not_scaling(app.add_option("--pairs", options.pairs, "alternations"))
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_option("--out,--json", options.out,
                 "JSON result (outputs/bench.json, scaling.json, loader.json, latency.json or "
                 "emulated.json); "
                 "--scaling draws beside it");
  return weft::bench::run_program(app, argc, argv, [&] {
    if (options.emulated && work->empty())
      options.works = {"autoencoder", "mlp", "cnn-full", "resnet50-b256", "dcgan", "transformer"};
    if (options.emulated && precision->empty()) options.precisions = {"f32", "tf32", "bf16"};
    if (options.out.empty())
      options.out = options.scaling    ? "outputs/scaling.json"
                    : options.loader   ? "outputs/loader.json"
                    : options.latency  ? "outputs/latency.json"
                    : options.emulated ? "outputs/emulated.json"
                                       : "outputs/bench.json";
    const weft::train::EnvironmentScope environment;
    return weft::bench::run(options);
  });
}
