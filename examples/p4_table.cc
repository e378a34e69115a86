// Measures the table of the walk-through on model parallelism and pipelines again: the autoencoder
// on one device, in two parts, and as a pipeline of two stages. `./weft run p4_table --host-devices
// 2`.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "weft/core/runtime/file.h"
#include "weft/examples/autoencoder.h"
#include "weft/examples/devices.h"
#include "weft/train/interrupt.h"
#include "weft/train/train.h"
#include "weft/weft.h"

using namespace weft;
using nlohmann::json;

namespace {

constexpr std::int64_t kEpochs = 10;
// For a row that is not run in full: if steps are slow, it ends after this time and before
// --limit-steps.
constexpr double kMostSeconds = 15;
constexpr int kFewestSteps = 6;

struct Row {
  std::string name;
  int chunks;  // 0: not a pipeline
  parallel::Recompute checkpoint;
  double published;  // seconds for ten epochs on two RTX 3090
};
using enum parallel::Recompute;
const std::vector<Row> kRows = {
    {"single", 0, never, 103.67},         {"model parallel", 0, never, 112.99},
    {"pipeline", 8, except_last, 130.96}, {"pipeline", 8, never, 87.23},
    {"pipeline", 16, never, 79.36},       {"pipeline", 32, never, 75.99}};

std::string label(const Row& row) {
  if (row.chunks == 0) return row.name;
  return row.name + ' ' + parallel::to_string(row.checkpoint) + ' ' + std::to_string(row.chunks);
}

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

/// The training step of one row: the model, as the row divides it, and what the step needs.
class Work {
 public:
  Work(const Row& row, const train::Options& options, const std::vector<Device>& devices,
       std::int64_t batch)
      : row_(row), devices_(devices) {
    model_.to(devices[0], options.dtype);
    if (row.chunks > 0) {
      const std::int64_t rows = std::max<std::int64_t>(1, batch / row.chunks);
      const Tensor sample = zeros({rows, 1, 28, 28}, {options.dtype, devices[0]});
      const nn::Sequential layers = examples::layers(model_);
      const auto sizes = parallel::balanced(parallel::layer_seconds(layers, sample, 0.5), 2);
      pipe_.emplace(parallel::cut(layers, sizes),
                    parallel::PipelineOptions{
                        .devices = devices, .chunks = row.chunks, .checkpoint = row.checkpoint});
      costs_ = parallel::stage_costs(*pipe_, {&sample, 1}, 1.0);
    } else if (row.name == "model parallel") {
      model_.decoder.to(devices[1]);
    }
    adam_.emplace(model_.parameters());
  }

  void step(const Tensor& x) {
    adam_->zero_grad();
    if (pipe_) {
      pipe_->step({x}, {x}, [](auto y, auto target) { return nn::mse_loss(y[0], target[0]); });
      bubbles_.push_back(pipe_->timeline().bubble());
    } else if (row_.name == "single") {
      nn::mse_loss(model_(x).first, x).backward();
    } else {
      const Tensor z = model_.encoder(x);
      nn::mse_loss(model_.decoder(z.to(devices_[1])), x.to(devices_[1])).backward();
    }
    adam_->step();
  }

  /// Adds what is known about the pipeline besides its times: bubbles, and milliseconds per
  /// micro-batch.
  void describe(json& result) {
    if (!pipe_) return;
    bubbles_.erase(bubbles_.begin(),
                   bubbles_.begin() + std::min<std::size_t>(2, bubbles_.size() - 1));
    const auto predicted =
        parallel::simulate(pipe_->schedule(result["micro_batches"].get<int>()), costs_);
    result["bubble_predicted"] = predicted.bubble();
    result["bubble_measured"] = median(bubbles_);
    for (std::size_t s = 0; s < costs_.forward.size(); ++s) {
      result["stage_ms"].push_back(
          1000 * (costs_.forward[s] + costs_.backward_input[s] + costs_.backward_weight[s]));
    }
  }

 private:
  const Row row_;
  const std::vector<Device> devices_;
  examples::Autoencoder model_;
  std::optional<parallel::Pipeline> pipe_;
  std::optional<optim::Adam> adam_;
  parallel::StageCosts costs_;
  std::vector<double> bubbles_;
};

/// Nothing if a signal comes: the row would have fewer steps than it says.
std::optional<json> run_row(const Row& row, const train::Options& options,
                            const std::vector<Device>& devices, const data::Mnist& images,
                            std::int64_t batch, bool full) {
  manual_seed(options.seed);
  for (const Device device : devices) reset_peak_memory(device);
  Work work(row, options, devices, batch);
  data::DataLoader loader(
      images,
      {.batch_size = batch, .shuffle = options.shuffle, .workers = 0, .device = devices[0]});
  const std::int64_t micro =
      row.chunks ? static_cast<std::int64_t>(
                       parallel::part_sizes(batch, static_cast<std::size_t>(row.chunks)).size())
                 : 0;
  json result = {{"name", row.name},
                 {"chunks", row.chunks},
                 {"micro_batches", micro},
                 {"checkpoint", parallel::to_string(row.checkpoint)},
                 {"batch", batch},
                 {"published_seconds", row.published},
                 {"bubble_predicted", nullptr},
                 {"bubble_measured", nullptr},
                 {"stage_ms", json::array()},
                 {"extrapolated", !full}};
  std::vector<double> times;
  const auto seconds_of = [](const auto& f) {
    const auto begin = std::chrono::steady_clock::now();
    f();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const std::int64_t most = options.limit_steps > 0 ? options.limit_steps : 30;
  double seconds = 0, all_seconds = 0;
  for (std::int64_t epoch = 0, steps = 0; epoch < (full ? kEpochs : 1'000'000); ++epoch) {
    for (auto& [x, label] : loader) {
      const double took = seconds_of([&] {
        work.step(x);
        for (const Device device : devices) runtime(device).synchronize(current_stream(device));
      });
      if (train::interrupted()) return std::nullopt;
      all_seconds += took;
      // The first two steps choose kernels and fill the caches.
      if (steps++ < 2) continue;
      times.push_back(took);
      seconds += took;
      const auto done = static_cast<std::int64_t>(times.size());
      if (!full && (done >= most || (seconds > kMostSeconds && done >= kFewestSteps))) break;
    }
    const auto done = static_cast<std::int64_t>(times.size());
    if (!full && (done >= most || (seconds > kMostSeconds && done >= kFewestSteps))) break;
  }
  const double step = median(times);
  result["steps"] = times.size();
  result["step_ms"] = 1000 * step;
  result["images_per_second"] = static_cast<double>(batch) / step;
  result["seconds"] =
      full ? all_seconds
           : static_cast<double>(kEpochs * images.size()) / static_cast<double>(batch) * step;
  work.describe(result);
  for (const Device device : devices) {
    result["peak_bytes"].push_back(memory_stats(device).peak_in_use_bytes);
  }
  return result;
}

std::string explain(const json& row) {
  char text[300];
  if (row["name"] == "single") return "one device computes, the other idles";
  if (row["name"] == "model parallel") {
    return "the devices take turns: one waits while the other computes, so nothing is won but "
           "memory";
  }
  const double predicted = row["bubble_predicted"], measured = row["bubble_measured"];
  const int m = row["micro_batches"];
  std::snprintf(
      text, sizeof text,
      "%d micro-batches of %lld: of equal stages 1/%d of the time would be idle, of these "
      "(%.1f and %.1f ms) %.0f %%, and %.0f %% were%s",
      m, static_cast<long long>(row["batch"].get<std::int64_t>() / m), m + 1,
      row["stage_ms"][0].get<double>(), row["stage_ms"][1].get<double>(), 100 * predicted,
      100 * measured, row["checkpoint"] == "never" ? "" : "; all but one run their forward twice");
  return text;
}

void table(const train::Options& given, const std::string& names, const std::string& groups,
           bool full) {
  WEFT_CHECK(given.weights.empty() && given.resume.empty(), InvalidArgument, "p4_table",
             "--weights and --resume have no use: each row times a new model");
  train::Options options = given;
  // The table needs two devices, so a CPU that the user has not split becomes two.
  if (options.device.is_cpu() && options.host_devices == 0 && host_device_count() == 1) {
    set_host_devices(2);
  }
  std::vector<Device> devices = examples::devices(options, names);
  if (devices.size() == 1 && devices[0].is_cuda()) {
    std::printf("one GPU stands for both devices: they share it, so nothing can be won\n");
    devices.push_back(devices[0]);
  }
  WEFT_CHECK(devices.size() == 2, InvalidArgument, "p4_table", "needs two devices, got ",
             devices.size(), ": --host-devices 2, or --devices 0,1");
  const data::Mnist images(options.data, {.dtype = options.dtype});
  const std::error_code error = make_folders(options.out);
  WEFT_CHECK(!error, Io, "p4_table", options.out, ": cannot make this folder: ", error.message());
  json result = {{"device", devices[0].is_cuda() ? "cuda" : "cpu"}, {"rows", json::array()}};
  std::printf("seconds of 10 epochs%s; published: two RTX 3090\n",
              full ? "" : ", from timed steps");
  const auto group = [&](const std::string& title,
                         const std::function<std::int64_t(const Row&)>& batch_of) {
    std::printf("\n%s\n%-24s %6s %10s %10s %9s %7s %8s %8s %18s\n", title.c_str(), "", "batch",
                "published", "ours", "images/s", "ratio", "bubble", "predict", "peak MiB");
    double single = 0;
    for (const Row& row : kRows) {
      if (train::interrupted()) return;
      const std::optional<json> whole = run_row(row, options, devices, images, batch_of(row), full);
      if (!whole) return;
      json line = *whole;
      if (single == 0) single = line["seconds"];
      line["group"] = title;
      line["ratio_to_single"] = single / line["seconds"].get<double>();
      std::string bubbles = "         -        -";
      if (!line["bubble_measured"].is_null()) {
        char text[40];
        std::snprintf(text, sizeof text, " %7.1f%% %7.1f%%",
                      100 * line["bubble_measured"].get<double>(),
                      100 * line["bubble_predicted"].get<double>());
        bubbles = text;
      }
      std::printf("%-24s %6lld %10.2f %10.1f %9.0f %6.2fx%s %9.1f %8.1f\n    %s\n",
                  label(row).c_str(), static_cast<long long>(line["batch"].get<std::int64_t>()),
                  row.published, line["seconds"].get<double>(),
                  line["images_per_second"].get<double>(), line["ratio_to_single"].get<double>(),
                  bubbles.c_str(), line["peak_bytes"][0].get<double>() / (1 << 20),
                  line["peak_bytes"][1].get<double>() / (1 << 20), explain(line).c_str());
      std::fflush(stdout);
      result["rows"].push_back(line);
      write_file_atomically(options.out + "/metrics.json", result.dump(1) + '\n');
    }
  };
  if (groups == "all" || groups == "published") {
    group("as published: batch 32 for each micro-batch, so fewer steps of the optimiser",
          [](const Row& row) { return std::int64_t{32} * std::max(row.chunks, 1); });
  }
  for (const std::int64_t batch : {32, 1024}) {
    const std::string name = std::to_string(batch);
    if (groups != "all" && groups != name) continue;
    group("batch " + name + " in every row", [&](const Row&) { return batch; });
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string devices = "all", groups = "all";
  bool full = false;
  return train::run(
      argc, argv,
      {.example = "p4_table",
       .description = "Reruns the published table of the autoencoder on two devices."},
      [&](const train::Options& options) { table(options, devices, groups, full); },
      {examples::devices_flag(devices),
       {"--rows",
        &groups,
        "as published, of one batch size, or all",
        {"all", "published", "32", "1024"}},
       {"--full", &full, "run the ten epochs of every row"}});
}
