// The options of a pipeline, and the type of its loss.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/core/base/device.h"
#include "weft/nn/any_module.h"
#include "weft/parallel/schedule.h"
#include "weft/tensor/tensor.h"

namespace weft::parallel {

/// Makes a stage, on its device. It may cut it, by parallelize() or fully_shard().
using StageFactory = std::function<nn::AnyModule(std::size_t stage)>;

struct PipelineOptions {
  /// The devices of the schedule's lists of actions; empty: the first ones of the kind that the
  /// first stage is on. Several lists may name the same device; they then take turns.
  std::vector<Device> devices = {};
  int chunks = 1;  ///< micro-batches per batch
  Recompute checkpoint = Recompute::except_last;
  std::string schedule = "gpipe";  ///< schedule_names()
  /// Used instead of the three options above, for batches of as many micro-batches as it has.
  std::optional<Schedule> actions = {};
  /// For step(): the loss is a mean over rows, so a micro-batch's loss is weighted by its share of
  /// the rows; false: the loss is a sum.
  bool mean_loss = true;
  /// Rank r runs the schedule's list r; `devices` is then this rank's device, or empty for the
  /// device of its first stage.
  std::shared_ptr<comm::ProcessGroup> group = {};
  /// The ranks with the same stages in other pipelines, each pipeline with its own batches: step()
  /// leaves the mean of their gradients, as DistributedDataParallel does.
  std::shared_ptr<comm::ProcessGroup> replicas = {};
};

/// outputs: those of the last stage for a micro-batch; targets: the micro-batch's part, on the last
/// stage's device. Returns a tensor of one element. The last stage's worker calls it, and calls it
/// again if that stage's forward is recomputed.
using PipelineLoss =
    std::function<Tensor(std::span<const Tensor> outputs, std::span<const Tensor> targets)>;

}  // namespace weft::parallel
