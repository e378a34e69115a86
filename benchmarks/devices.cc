// Engines of one process on virtual CPU devices of one core each: DataParallel and the pipeline
// compared with one such device, and the pipeline's times compared with its schedule's prediction.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "weft/benchmarks/program.h"
#include "weft/benchmarks/sides.h"
#include "weft/benchmarks/timing.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/file.h"
#include "weft/core/runtime/parallel.h"
#include "weft/examples/autoencoder.h"
#include "weft/parallel/balance.h"
#include "weft/parallel/data_parallel.h"
#include "weft/parallel/pipeline.h"
#include "weft/train/environment.h"
#include "weft/weft.h"

namespace weft::bench {
namespace {

using nlohmann::json;

constexpr int kDevices = 2;
// The required results: DataParallel's throughput relative to one device at kCheckedBatch; the
// pipeline's relative to the limit of its stages, and the largest error of its predicted bubble.
constexpr std::int64_t kCheckedBatch = 64;
constexpr double kOfOneDevice = 1.5, kOfIdeal = 0.85, kBubbleOff = 0.03;

struct Options {
  std::vector<std::string> parts = {"data_parallel", "pipeline"};
  std::vector<std::int64_t> batches = {16, kCheckedBatch, 256};
  std::int64_t chunks = 8;
  std::int64_t micro_batch = 32;
  int pairs = 31;
  bool check = false;
  std::string out = "outputs/devices.json";
};

std::vector<Device> devices() {
  std::vector<Device> list;
  for (int i = 0; i < kDevices; ++i) list.emplace_back(DeviceType::cpu, i);
  return list;
}

/// A model with its optimiser, on the first device.
struct Trained {
  examples::Autoencoder model;
  optim::Adam adam{model.parameters()};

  /// step() computes gradients.
  template <class Step>
  double time(int steps, const Step& step) {
    return time_ms([&] {
      for (int i = 0; i < steps; ++i) {
        adam.zero_grad();
        step();
        adam.step();
      }
    });
  }
};

void show(const Side& side, const Side& first) {
  const Interval q = median_interval(side.ms), r = median_interval(ratios(first, side));
  std::printf("%-48s %9.3f ms [%.3f, %.3f]   %.3fx [%.3f, %.3f]\n", side.label.c_str(), q.median,
              q.low, q.high, r.median, r.low, r.high);
}

/// Alternates the sides; prints and keeps their times, and the speed relative to the first side.
void measure(std::vector<Side>& sides, const Options& options, json& row) {
  for (Side& side : sides) side.time(2);  // chooses kernels
  alternate(sides, options.pairs);
  row["steps"] = options.pairs;
  for (const Side& side : sides) {
    show(side, sides[0]);
    row[side.key + "_ms"] = to_json(median_interval(side.ms));
    if (&side != &sides[0]) {
      row[side.key + "_speedup"] = to_json(median_interval(ratios(sides[0], side)));
    }
  }
  std::fflush(stdout);
}

json data_parallel(const Options& options, std::int64_t batch) {
  const Tensor x = rand({batch, 1, 28, 28});
  Trained one, two;
  parallel::DataParallel dp(two.model, {.devices = devices()});
  std::printf("\nautoencoder, batch %lld: times, and how many times as fast as the first\n",
              static_cast<long long>(batch));
  std::vector<Side> sides = {
      {"one", "one device of one core",
       [&](int steps) {
         return one.time(steps, [&] { nn::mse_loss(one.model(x).first, x).backward(); });
       }},
      {"data_parallel", "DataParallel on two", [&](int steps) {
         return two.time(steps, [&] { nn::mse_loss(dp(x).first, x).backward(); });
       }}};
  json row = {{"work", "autoencoder"}, {"batch", batch}};
  measure(sides, options, row);
  return row;
}

json pipeline(const Options& options, const std::string& schedule, parallel::Recompute checkpoint) {
  const std::int64_t rows = options.chunks * options.micro_batch;
  const Tensor x = rand({rows, 1, 28, 28}), sample = x.narrow(0, 0, options.micro_batch);
  Trained one, two;
  const nn::Sequential layers = examples::layers(two.model);
  const auto sizes = parallel::balanced(parallel::layer_seconds(layers, sample),
                                        static_cast<std::size_t>(kDevices));
  parallel::Pipeline pipe(parallel::cut(layers, sizes), {.devices = devices(),
                                                         .chunks = static_cast<int>(options.chunks),
                                                         .checkpoint = checkpoint,
                                                         .schedule = schedule});
  const std::string name = schedule + ", checkpoint " + parallel::to_string(checkpoint);
  std::printf("\nautoencoder, %lld micro-batches of %lld, %s, cut behind layer %zu\n",
              static_cast<long long>(options.chunks), static_cast<long long>(options.micro_batch),
              name.c_str(), sizes[0]);
  // Measures the costs for the prediction before the steps.
  const parallel::StageCosts costs = parallel::stage_costs(pipe, {&sample, 1}, 2.0);
  const parallel::Timeline predicted =
      parallel::simulate(pipe.schedule(static_cast<int>(options.chunks)), costs);
  std::vector<double> bubbles, lengths;
  const auto step = [&] {
    pipe.step({x}, {x}, [](auto y, auto target) { return nn::mse_loss(y[0], target[0]); });
    bubbles.push_back(pipe.timeline().bubble());
    lengths.push_back(pipe.timeline().end * 1000);
  };
  std::vector<Side> sides = {
      {"one", "one device of one core",
       [&](int steps) {
         return one.time(steps, [&] { nn::mse_loss(one.model(x).first, x).backward(); });
       }},
      {"pipeline", "pipeline on two", [&](int steps) { return two.time(steps, step); }}};
  json row = {{"work", "autoencoder"},
              {"batch", rows},
              {"chunks", options.chunks},
              {"schedule", schedule},
              {"checkpoint", parallel::to_string(checkpoint)},
              {"layers_of_first_stage", sizes[0]}};
  measure(sides, options, row);
  bubbles.erase(bubbles.begin(), bubbles.begin() + 2);  // of the steps that chose kernels
  lengths.erase(lengths.begin(), lengths.begin() + 2);
  const Interval bubble = median_interval(bubbles), length = median_interval(lengths);
  row["bubble"] = to_json(bubble);
  row["bubble_predicted"] = predicted.bubble();
  row["pass_ms"] = to_json(length);
  row["pass_predicted_ms"] = predicted.end * 1000;
  for (int s = 0; s < kDevices; ++s) {
    const double forward = costs.forward[s] * 1000, input = costs.backward_input[s] * 1000,
                 weight = costs.backward_weight[s] * 1000;
    row["stage_ms"].push_back({{"forward", forward}, {"input", input}, {"weight", weight}});
    std::printf("  stage %d: forward %.2f ms, gradients of inputs %.2f, of weights %.2f\n", s,
                forward, input, weight);
  }
  std::printf("  forward and backward: %.2f ms [%.2f, %.2f], predicted %.2f\n", length.median,
              length.low, length.high, predicted.end * 1000);
  std::printf("  bubble: %.1f %% [%.1f, %.1f], predicted %.1f, of equal stages %.1f\n",
              100 * bubble.median, 100 * bubble.low, 100 * bubble.high, 100 * predicted.bubble(),
              100.0 * (kDevices - 1) / static_cast<double>(options.chunks + kDevices - 1));
  std::fflush(stdout);
  return row;
}

bool reached(const char* what, double got, double wanted, bool good) {
  std::printf("check: %s %.3f, to reach %.3f: %s\n", what, got, wanted,
              good ? "reached" : "missed");
  return good;
}

bool check(const json& result) {
  const json& rows = result["data_parallel"];
  const auto row =
      std::ranges::find_if(rows, [](const json& r) { return r["batch"] == kCheckedBatch; });
  const double speedup = (*row)["data_parallel_speedup"]["median"];
  bool good =
      reached("DataParallel beside one device", speedup, kOfOneDevice, speedup >= kOfOneDevice);
  const json& pipe = result["pipeline"][0];
  // Forward and backward together; the ideal comes from the stages' costs, measured before.
  const double of_ideal =
      pipe["pass_predicted_ms"].get<double>() / pipe["pass_ms"]["median"].get<double>();
  good &= reached("pipeline beside its ideal", of_ideal, kOfIdeal, of_ideal >= kOfIdeal);
  const double off =
      std::abs(pipe["bubble"]["median"].get<double>() - pipe["bubble_predicted"].get<double>());
  return reached("bubble, distance from the predicted", off, kBubbleOff, off <= kBubbleOff) && good;
}

int run(const Options& options) {
  WEFT_CHECK(!options.check ||
                 (options.parts.size() == 2 && std::ranges::count(options.batches, kCheckedBatch)),
             InvalidArgument, "bench", "--check needs both parts and --batch-size ", kCheckedBatch);
  const train::EnvironmentScope environment;
  make_folder_of(options.out);
  set_host_devices(kDevices);
  set_num_threads(1);
  json result = describe_machine();
  result.update({{"devices", kDevices}, {"threads_per_device", 1}, {"dtype", "f32"}});
  std::printf("%s, %d cores, f32; medians of %d with their 90 %% intervals\n", cpu_model().c_str(),
              core_count(), options.pairs);
  const auto keep = [&](const char* part, const json& row) {
    result[part].push_back(row);
    write_file_atomically(options.out, to_text(result));
  };
  if (std::ranges::count(options.parts, "data_parallel")) {
    for (const std::int64_t batch : options.batches) {
      keep("data_parallel", data_parallel(options, batch));
    }
  }
  if (std::ranges::count(options.parts, "pipeline")) {
    using enum parallel::Recompute;
    keep("pipeline", pipeline(options, "gpipe", never));
    keep("pipeline", pipeline(options, "gpipe", except_last));
    keep("pipeline", pipeline(options, "1f1b", never));
    keep("pipeline", pipeline(options, "zb-h1", never));
  }
  std::printf("written to %s\n", options.out.c_str());
  return options.check && !check(result);
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  weft::train::bound_spinning(argc, argv);
  weft::bench::Options options;
  CLI::App app("DataParallel and pipelines on two CPU devices of one core", "./weft bench devices");
  app.add_option("--part", options.parts)
      ->check(CLI::IsMember(options.parts))
      ->capture_default_str();
  app.add_option("--batch-size", options.batches, "of DataParallel, all devices together")
      ->check(CLI::Range(2, 4096))
      ->capture_default_str();
  app.add_option("--chunks", options.chunks, "micro-batches")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--micro-batch-size", options.micro_batch)
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--pairs", options.pairs, "alternations")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_flag("--check", options.check, "exit with 1 unless what is to be reached is");
  app.add_option("--out,--json", options.out)->capture_default_str();
  return weft::bench::run_program(app, argc, argv, [&] { return weft::bench::run(options); });
}
