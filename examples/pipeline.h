// Shared by the pipeline programs, besides devices.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "weft/core/runtime/thread_state.h"
#include "weft/examples/devices.h"
#include "weft/train/options.h"
#include "weft/weft.h"

namespace weft::examples {

struct PipelineFlags {
  std::string devices = "all";
  std::int64_t chunks = 8;
  std::string checkpoint = "except_last";
  std::string schedule = "gpipe";
  std::string schedule_file = "none";
};

/// `schedule`: the name of the schedule's flag, for programs that use --schedule for something
/// else.
inline std::vector<train::Flag> schedule_flags(PipelineFlags& values,
                                               const std::string& schedule = "--schedule") {
  return {{"--chunks", &values.chunks, "micro-batches of a batch"},
          {"--checkpoint",
           &values.checkpoint,
           "which of them are computed again for their backward",
           {"never", "except_last", "always"}},
          {schedule, &values.schedule, "in which order", parallel::schedule_names()},
          {.name = schedule + "-file",
           .value = &values.schedule_file,
           .help = "in the order of this file, which ./weft schedule writes",
           .excludes = {"--chunks", "--checkpoint", schedule}}};
}

inline std::vector<train::Flag> flags(PipelineFlags& values,
                                      const std::string& schedule = "--schedule") {
  std::vector<train::Flag> all = schedule_flags(values, schedule);
  all.insert(all.begin(), devices_flag(values.devices));
  return all;
}

/// Divides the layers into stages of about the same time for a micro-batch like `sample`; returns
/// the numbers of their layers. With --deterministic the stages have about the same memory instead:
/// then a resumed run has the same stages, and adds the gradients of its replicas in the same
/// order. Prints where it cuts.
inline std::vector<std::size_t> stage_sizes(const nn::Sequential& layers, const Tensor& sample,
                                            std::size_t stages) {
  const bool timed = !thread_state().deterministic;
  const std::vector<double> costs =
      timed ? parallel::layer_seconds(layers, sample) : parallel::layer_bytes(layers, sample, 1, 2);
  const std::vector<std::size_t> sizes = parallel::balanced(costs, stages);
  std::size_t layer = 0;
  for (std::size_t s = 0; s < sizes.size(); ++s) {
    double sum = 0;
    for (const std::size_t end = layer + sizes[s]; layer < end; ++layer) sum += costs[layer];
    std::printf("stage %zu: %zu layers, %.2f %s a micro-batch\n", s, sizes[s],
                timed ? sum * 1000 : sum / (1 << 20), timed ? "ms" : "MiB");
  }
  return sizes;
}

/// The options that the flags give; without devices.
inline parallel::PipelineOptions pipeline_options(const PipelineFlags& flags) {
  parallel::PipelineOptions options{.chunks = static_cast<int>(flags.chunks),
                                    .checkpoint = parallel::parse_recompute(flags.checkpoint),
                                    .schedule = flags.schedule};
  if (flags.schedule_file != "none") options.actions = parallel::load_schedule(flags.schedule_file);
  return options;
}

/// How many micro-batches a batch has, if it has as many rows.
inline int chunk_count(const PipelineFlags& flags) {
  const parallel::PipelineOptions options = pipeline_options(flags);
  return options.actions ? options.actions->micro_batches : options.chunks;
}

/// The rows of each micro-batch of a full batch; the first one is the largest.
inline std::vector<std::int64_t> micro_batches(const PipelineFlags& flags,
                                               std::int64_t batch_size) {
  return parallel::part_sizes(batch_size, static_cast<std::size_t>(chunk_count(flags)));
}

/// The number of stages for `devices` devices or ranks: as many each as the schedule asks for.
inline std::size_t stage_count(const parallel::PipelineOptions& options, std::size_t devices) {
  if (options.actions) return static_cast<std::size_t>(options.actions->stages);
  return devices * static_cast<std::size_t>(parallel::stages_per_device(options.schedule));
}

/// A pipeline of the layers, in stages on these devices.
inline parallel::Pipeline pipeline(const nn::Sequential& layers, const Tensor& sample,
                                   const std::vector<Device>& devices, const PipelineFlags& flags) {
  parallel::PipelineOptions options = pipeline_options(flags);
  options.devices = devices;
  const auto sizes = stage_sizes(layers, sample, stage_count(options, devices.size()));
  for (const Device device : devices) reset_peak_memory(device);  // of the measurement
  return parallel::Pipeline(parallel::cut(layers, sizes), std::move(options));
}

/// The gradients of a batch, by pipe.step({x}, {target}, ...); returns the batch's loss.
/// loss(output, target): the mean over the rows of a micro-batch. In the one process of ./weft
/// prove they are those of a loop over the micro-batches, without `pipe`: else what the engine does
/// wrong would be on both sides. `model` is what the stages compute, one after the other.
template <class Engine, class Model, class Loss>
Tensor pipeline_step(const train::Options& options, const PipelineFlags& flags, Engine& pipe,
                     Model& model, const Tensor& x, const Tensor& target, const Loss& loss) {
  if (!options.alone()) {
    return pipe.step({x}, {target},
                     [&](auto outputs, auto targets) { return loss(outputs[0], targets[0]); });
  }
  const std::vector<Tensor> inputs = x.chunk(chunk_count(flags));
  const std::vector<Tensor> targets = target.chunk(chunk_count(flags));
  std::vector<Tensor> losses;
  Tensor sum;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const double share = static_cast<double>(inputs[i].shape(0)) / static_cast<double>(x.shape(0));
    losses.push_back(loss(model(inputs[i]), targets[i]) * share);
    sum = i == 0 ? losses[i].detach() : sum + losses[i].detach();
  }
  // Gradients are added up in the order of the backwards, which GPipe runs from the last one on.
  const bool from_last = flags.schedule == "gpipe" && flags.schedule_file == "none";
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const std::size_t number = from_last ? losses.size() - 1 - i : i;
    losses[number].backward();
    options.note_micro_batch(static_cast<std::int64_t>(number));
  }
  return sum;
}

}  // namespace weft::examples
