// The state of a pipeline that does not belong to one batch. Private to parallel/.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "weft/nn/any_module.h"
#include "weft/parallel/pipeline_options.h"
#include "weft/parallel/schedule.h"
#include "weft/parallel/simulate.h"
#include "weft/tensor/tensor.h"

namespace weft::parallel {

/// A schedule that has been checked.
struct PipelinePlan {
  explicit PipelinePlan(Schedule s);

  Schedule schedule;
  ScheduleCheck checked;
  std::vector<std::vector<bool>> recomputed;  // by stage and micro-batch
};

struct PipelineState {
  std::vector<nn::AnyModule> stages;
  StageFactory factory = {};  // none: all stages are there
  PipelineOptions options = {};
  std::optional<int> own_list =
      {};                        // the list of actions that this process runs, if it runs only one
  std::vector<int> owners = {};  // the list that each stage belongs to
  std::vector<Device> devices = {};  // of each stage; arbitrary for stages of other processes
  std::map<int, std::unique_ptr<const PipelinePlan>> plans = {};  // by number of micro-batches
  Timeline timeline = {};
  std::vector<std::pair<Shape, DType>> tried = {};  // shapes as for one row

  bool is_here(int stage) const { return !own_list || owner(stage) == *own_list; }
  int owner(int stage) const { return owners[static_cast<std::size_t>(stage)]; }
  /// Whether this process has that stage.
  bool has(int stage) const { return !factory || is_here(stage); }
  Device device(int stage) const { return devices[static_cast<std::size_t>(stage)]; }

  const PipelinePlan& plan(int micro_batches);
  /// The rows of each micro-batch.
  std::vector<std::int64_t> micro_batches(std::int64_t rows) const;
  /// Finds the list of each stage; returns how many lists there are.
  int find_owners();
  void place_stages();
  /// Calls the factory, if there is one, for this process's stages.
  void make_stages();
  /// Moves this process's stages to their devices. Throws Device when one does not exist.
  void move_stages();
  /// Sends a micro-batch through the stages, without effects, if the inputs have other shapes or
  /// dtypes than the last time: stages that do not fit are then found before anything runs.
  void try_stages(std::span<const Tensor> inputs, std::int64_t rows);
  /// Tries one stage: replaces x by its results.
  void try_stage(int stage, std::vector<Tensor>& x, std::int64_t rows) const;
};

/// Rows [begin, begin + rows) of the tensors that have any, all on `device`.
std::vector<Tensor> part_of(std::span<const Tensor> tensors, std::int64_t begin, std::int64_t rows,
                            Device device);

/// The number of rows of a batch. The first tensor that has dimensions sets it. Throws Shape,
/// naming `what`, if another tensor has another number, or the number is not `expected`.
std::int64_t rows_of(const char* what, std::span<const Tensor> tensors,
                     std::optional<std::int64_t> expected);

}  // namespace weft::parallel
