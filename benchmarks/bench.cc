// weft against PyTorch, side by side: blocks of steps of the two alternate, so that a noisy moment
// meets both, and the ratio is the median over the pairs.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "weft/autograd/ops.h"
#include "weft/benchmarks/emulated.h"
#include "weft/benchmarks/floor.h"
#include "weft/benchmarks/loader.h"
#include "weft/benchmarks/operations.h"
#include "weft/benchmarks/peer.h"
#include "weft/benchmarks/scaling.h"
#include "weft/benchmarks/timing.h"
#include "weft/benchmarks/work.h"
#include "weft/core/allocator.h"
#include "weft/core/error.h"
#include "weft/core/file.h"
#include "weft/core/parallel.h"
#include "weft/core/runtime.h"
#include "weft/core/thread_state.h"
#include "weft/tensor/creation.h"
#include "weft/train/environment.h"

namespace weft::bench {
namespace {

using nlohmann::json;

struct Options {
  std::string peer;
  std::string peer_script = "benchmarks/peer.py";
  std::vector<std::string> works = {"autoencoder", "mlp", "cnn", "resnet50", "dcgan"};
  std::string device = "cpu";
  bool scaling = false;
  bool loader = false;
  bool emulated = false;
  bool floor = false;
  bool operations = false;
  bool ieee = false;
  bool compile = false;
  int threads = core_count();
  int pairs = 31;
  std::string out = {};
};

// Steps only queue work on a GPU: every timed region ends here.
void finish() {
  const Device device = thread_state().device;
  runtime(device).synchronize_device(device.index);
}

// weft's configurations: the team sizes up to all cores, and the batches' layout; the fastest is
// kept, as on the peer's side.
struct Prepared {
  std::unique_ptr<Work> work;
  int threads = 1;
  bool channels_last = false;
  std::string name;
  json tried;
};

Prepared prepare(const std::string& name, int most_threads) {
  Prepared best;
  double best_ms = 0;
  json tried;
  if (!thread_state().device.is_cpu()) most_threads = 1;
  for (int threads = 1; threads <= most_threads; threads *= 2) {
    for (int channels_last = 0; channels_last <= int(has_layouts(name)); ++channels_last) {
      set_num_threads(threads);
      auto work = make_work(name, channels_last);
      const int block = work->block();
      const auto run = [&] {
        for (int i = 0; i < block; ++i) work->step();
        finish();
      };
      run();
      double ms = time_ms(run);
      for (int i = 0; i < 2; ++i) ms = std::min(ms, time_ms(run));
      ms /= block;
      const std::string config =
          "threads=" + std::to_string(threads) + (channels_last ? " channels_last" : "");
      tried[config] = ms;
      if (!best.work || ms < best_ms) {
        best_ms = ms;
        best = {std::move(work), threads, bool(channels_last), config, {}};
      }
    }
  }
  best.tried = tried;
  return best;
}

// Of one step: parameters, their gradients, optimiser state, the batches, and what the step makes.
std::int64_t peak_bytes(const std::string& name, bool channels_last) {
  const Device device = thread_state().device;
  const std::int64_t others = memory_stats(device).in_use_bytes;  // the work being timed
  auto work = make_work(name, channels_last);
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

json bench_work(const std::string& name, const Options& options, Peer* peer) {
  Prepared weft_side = prepare(name, options.threads);
  const int block = weft_side.work->block();
  json row = {{"work", name},
              {"batch_size", weft_side.work->batch_size()},
              {"weft_config", weft_side.name},
              {"weft_tried", weft_side.tried}};
  if (peer) {
    const json answer =
        peer->ask({{"cmd", "prepare"}, {"work", name}, {"threads", options.threads}});
    row["peer_config"] = answer["config"];
    row["peer_tried"] = answer["tried"];
  }
  // Compiled after all else is chosen, for it takes minutes; a row of its own, as a program has to
  // ask for it.
  bool compiled = peer && options.compile;
  if (compiled) {
    const json answer = peer->ask({{"cmd", "compile"}, {"work", name}});
    compiled = !answer.contains("error");
    if (compiled)
      row["compiled_seconds"] = answer["seconds"];
    else
      row["compiled_error"] = answer["error"];
  }
  std::vector<double> mine, ieee_ms, theirs, ratios, ieee_ratios, compiled_ms, compiled_ratios;
  set_num_threads(weft_side.threads);
  const auto steps = [&](int count) {
    for (int s = 0; s < count; ++s) weft_side.work->step();
    finish();
  };
  const auto ieee = [&](const std::function<void()>& run) {
    const Scoped precision(&ThreadState::allow_tf32_conv, false);
    run();
  };
  if (options.ieee) ieee([&] { steps(2); });  // finds its plans
  for (int i = 0; i < options.pairs; ++i) {
    // Who goes first alternates too.
    const auto run_mine = [&] {
      mine.push_back(time_ms([&] { steps(block); }) / block);
      if (options.ieee) ieee([&] { ieee_ms.push_back(time_ms([&] { steps(block); }) / block); });
    };
    const auto run_peer = [&](bool compiled_one, std::vector<double>& times) {
      const json answer =
          peer->ask({{"cmd", "run"}, {"work", name}, {"steps", block}, {"compiled", compiled_one}});
      times.push_back(answer["ms"].get<double>() / block);
    };
    const auto run_theirs = [&] {
      if (peer) run_peer(false, theirs);
      if (compiled) run_peer(true, compiled_ms);
    };
    if (i % 2) run_theirs();
    run_mine();
    if (i % 2 == 0) run_theirs();
    if (peer) ratios.push_back(theirs.back() / mine.back());
    if (peer && options.ieee) ieee_ratios.push_back(theirs.back() / ieee_ms.back());
    if (compiled) compiled_ratios.push_back(compiled_ms.back() / mine.back());
  }
  const auto put = [&](const char* key, const std::vector<double>& values) {
    if (values.empty()) return;
    const Quartiles q = quartiles(values);
    row[key] = {{"low", q.low}, {"median", q.median}, {"high", q.high}};
  };
  put("weft_ms", mine);
  put("ieee_ms", ieee_ms);
  put("peer_ms", theirs);
  put("ratio", ratios);
  put("ieee_ratio", ieee_ratios);
  put("compiled_ms", compiled_ms);
  put("compiled_ratio", compiled_ratios);
  const double ms = quartiles(mine).median;
  std::printf("%-12s weft %8.3f ms (%s)", name.c_str(), ms,
              row["weft_config"].get<std::string>().c_str());
  if (peer) {
    const Quartiles q = quartiles(ratios);
    std::printf("   PyTorch %8.3f ms (%s)   %.2fx [%.2f, %.2f]", quartiles(theirs).median,
                row["peer_config"].get<std::string>().c_str(), q.median, q.low, q.high);
  }
  std::printf("\n");
  if (options.ieee) {
    std::printf("%-12s weft %8.3f ms with ieee convolutions", "", quartiles(ieee_ms).median);
    if (peer) {
      const Quartiles q = quartiles(ieee_ratios);
      std::printf("   %.2fx [%.2f, %.2f]", q.median, q.low, q.high);
    }
    std::printf("\n");
  }
  if (compiled) {
    const Quartiles q = quartiles(compiled_ratios);
    std::printf("%-12s PyTorch compiled %8.3f ms   %.2fx [%.2f, %.2f]; compiling took %.0f s\n", "",
                quartiles(compiled_ms).median, q.median, q.low, q.high,
                row["compiled_seconds"].get<double>());
  } else if (row.contains("compiled_error")) {
    std::printf("%-12s PyTorch compiled: failed: %s\n", "",
                row["compiled_error"].get<std::string>().c_str());
  }

  row["weft_peak_bytes"] = peak_bytes(name, weft_side.channels_last);
  if (peer) {
    const json memory = peer->ask({{"cmd", "memory"}, {"work", name}});
    row["peer_peak_bytes"] = memory["peak_bytes"];
    std::printf("%-12s peak of live tensor bytes: weft %.2f MiB, PyTorch %.2f MiB\n", "",
                row["weft_peak_bytes"].get<double>() / 1048576,
                row["peer_peak_bytes"].get<double>() / 1048576);
  }
  if (options.operations) {
    for (const OperationRow& o : measure_operations(*weft_side.work, std::max(2, block))) {
      std::printf("    %-28s %7.1f calls %9.3f ms %5.1f %%\n", o.name.c_str(), o.calls, o.ms,
                  100 * o.ms / ms);
      row["operations"].push_back({{"name", o.name}, {"calls", o.calls}, {"ms", o.ms}});
    }
  }
  if (options.floor) {
    set_num_threads(options.threads);
    double sum = 0;
    for (const FloorRow& f : measure_floor(name)) {
      std::printf("    %-24s %8.3f ms\n", f.kernel.c_str(), f.ms);
      row["floor"].push_back({{"kernel", f.kernel}, {"ms", f.ms}});
      sum += f.ms;
    }
    row["floor_ms"] = sum;
    std::printf("    %-24s %8.3f ms, the step takes %.2fx of it\n", "sum", sum, ms / sum);
  }
  std::fflush(stdout);
  return row;
}

/// The other side, if one is wanted; its versions go into the result.
std::unique_ptr<Peer> start_peer(const Options& options, json& result) {
  if (options.peer.empty()) {
    std::printf("no --peer PYTHON given, so weft alone\n");
    return nullptr;
  }
  auto peer = std::make_unique<Peer>(options.peer, options.peer_script);
  result["peer"] = peer->ask({{"cmd", "hello"}, {"device", to_string(thread_state().device)}});
  std::printf("PyTorch %s (%s)\n", result["peer"]["torch"].get<std::string>().c_str(),
              result["peer"]["capability"].get<std::string>().c_str());
  return peer;
}

/// The rows of `--work`, and the time of one operation.
void compare(const Options& options, json& result) {
  const std::unique_ptr<Peer> peer = start_peer(options, result);
  std::fflush(stdout);
  for (const std::string& work : options.works)
    result["rows"].push_back(bench_work(work, options, peer.get()));

  set_num_threads(1);
  std::vector<double> mine, theirs;
  for (int i = 0; i < 15; ++i) {
    mine.push_back(op_us(20000));
    if (peer) theirs.push_back(peer->ask({{"cmd", "op"}, {"count", 20000}})["us"].get<double>());
  }
  result["op_us"]["weft"] = quartiles(mine).median;
  std::printf("1-element multiply with grad: weft %.3f us", quartiles(mine).median);
  if (peer) {
    result["op_us"]["peer"] = quartiles(theirs).median;
    std::printf(", PyTorch %.3f us", quartiles(theirs).median);
  }
  std::printf("\n");
}

int run(const Options& options) {
  // Now, not after minutes of measuring.
  const std::filesystem::path folder = std::filesystem::path(options.out).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  WEFT_CHECK(!error, Io, "bench", "cannot make the folder of ", options.out, ": ", error.message());
  const Device device(options.emulated ? "cuda" : options.device);
  runtime(device);  // throws where there is no such device
  WEFT_CHECK(device.is_cpu() || !options.floor, InvalidArgument, "bench",
             "--floor times the CPU's kernels, not those of ", device);
  thread_state().device = device;
  json result = {{"cpu", cpu_model()},
                 {"cores", core_count()},
                 {"device", to_string(device)},
                 {"dtype", "f32"}};
  if (const char* commit = std::getenv("WEFT_COMMIT")) result["commit"] = commit;
  std::printf("%s, %d cores, %s, f32\n", cpu_model().c_str(), core_count(),
              to_string(device).c_str());
  if (options.scaling) {
    set_num_threads(options.threads);
    result["threads"] = options.threads;
    result.update(run_scaling(std::filesystem::path(options.out).replace_extension().string()));
  } else if (options.loader) {
    const std::unique_ptr<Peer> peer = start_peer(options, result);
    result.update(run_loader(options.pairs, peer.get()));
  } else if (options.emulated) {
    result.update(count_steps(options.works));
  } else {
    compare(options, result);
  }
  write_file_atomically(options.out, result.dump(1) + "\n");
  std::printf("written to %s\n", options.out.c_str());
  return 0;
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
      "one");
  emulated->excludes(scaling)->excludes(loader);
  const auto not_scaling = [&](CLI::Option* option) { return option->excludes(scaling); };
  const auto not_loader = [&](CLI::Option* option) { return option->excludes(loader); };
  const auto neither = [&](CLI::Option* option) { return not_loader(not_scaling(option)); };
  not_scaling(app.add_option("--peer", options.peer, "Python with torch (tools/peer-setup)"));
  // Given by ./weft whatever else is.
  app.add_option("--peer-script", options.peer_script, "the peer's program")->capture_default_str();
  neither(app.add_option("--work", options.works, "autoencoder, mlp, cnn, resnet50, dcgan"))
      ->capture_default_str();
  not_loader(app.add_option("--device", options.device, "cpu, cuda or cuda:N"))
      ->capture_default_str();
  neither(app.add_flag("--floor", options.floor, "also time a step's kernels one by one"));
  neither(app.add_flag("--operations", options.operations,
                       "also divide a step's time among its operations"));
  neither(app.add_flag("--ieee", options.ieee,
                       "also time weft with ieee convolutions: on the CPU without Winograd's"));
  neither(app.add_flag("--compile", options.compile,
                       "also time the peer's best configuration under torch.compile"));
  not_loader(
      app.add_option("--threads", options.threads, "most threads to try; with --scaling, all used"))
      ->check(CLI::Range(1, 256));
  not_scaling(app.add_option("--pairs", options.pairs, "alternations"))
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_option("--out,--json", options.out,
                 "JSON result (outputs/bench.json, scaling.json, loader.json or emulated.json); "
                 "--scaling draws beside it");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "bench: %s\n", error.what());
    return 2;
  }
  if (options.out.empty())
    options.out = options.scaling    ? "outputs/scaling.json"
                  : options.loader   ? "outputs/loader.json"
                  : options.emulated ? "outputs/emulated.json"
                                     : "outputs/bench.json";
  const weft::train::EnvironmentScope environment;
  try {
    return weft::bench::run(options);
  } catch (const weft::Error& e) {
    std::fprintf(stderr, "bench: %s\n", e.what());
    return 1;
  }
}
