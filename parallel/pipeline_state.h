// What a pipeline is, apart from the batch in it. Private to parallel/.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "weft/parallel/pipeline.h"
#include "weft/parallel/reducer.h"
#include "weft/parallel/stage_links.h"

namespace weft::parallel {

/// A schedule that has been checked.
struct Pipeline::Plan {
  explicit Plan(Schedule s);

  Schedule schedule;
  ScheduleCheck checked;
  std::vector<std::vector<bool>> recomputed;  // by stage and micro-batch
};

struct Pipeline::State {
  std::vector<nn::AnyModule> stages;
  PipelineOptions options;
  int rank = 0;                                      // in options.group
  std::vector<int> owners;                           // of the stages, by the number of their list
  std::vector<Device> devices;                       // of the stages; of other ranks' anything
  std::map<int, std::unique_ptr<const Plan>> plans;  // by number of micro-batches
  Timeline timeline;
  std::vector<std::pair<Shape, DType>> tried;  // of inputs, as of one row
  bool tried_together = false;                 // with the other ranks
  std::unique_ptr<StageLinks> links;           // to the other ranks, if there are any
  std::optional<DType> loss_dtype;             // as the last stage's rank gave it first
  // Of this rank's stages, with options.replicas: those that train something, and the others.
  std::vector<std::unique_ptr<Reducer>> reducers;
  std::vector<nn::AnyModule> untrained;

  bool is_here(int stage) const { return !options.group || owner(stage) == rank; }
  int owner(int stage) const { return owners[static_cast<std::size_t>(stage)]; }
  Device device(int stage) const { return devices[static_cast<std::size_t>(stage)]; }

  const Plan& plan(int micro_batches);
  /// The rows of each micro-batch.
  std::vector<std::int64_t> micro_batches(std::int64_t rows) const;
  void place_stages();
  /// Checks that all ranks want the same, and connects this one to its neighbours. `mistake`: what
  /// place_stages() has thrown here.
  void connect(const std::exception_ptr& mistake);
  void meet_replicas();
  void broadcast_buffers();
  /// Sends a micro-batch through the stages, to no effect, when the inputs are of another form than
  /// the last time, among several ranks only before the first batch: what does not fit is found
  /// before anything runs.
  void try_stages(std::span<const Tensor> inputs, std::int64_t rows);
  /// f(), whose error ends whatever other ranks may wait for.
  template <class F>
  auto or_abort(const F& f) {
    try {
      return f();
    } catch (...) {
      abort();
      throw;
    }
  }

 private:
  void check_stages() const;
  void abort() noexcept;
  void try_stages(std::vector<Tensor> x, std::int64_t rows, std::int64_t whole);
};

/// Rows [begin, begin + rows) of the tensors that have any, all on `device`.
std::vector<Tensor> part_of(std::span<const Tensor> tensors, std::int64_t begin, std::int64_t rows,
                            Device device);

/// The rows of a batch. Which of its tensors are cut, by rows, is told by the first that has
/// dimensions. Throws Shape, naming `what`, where others have another number than it or `expected`.
std::int64_t rows_of(const char* what, std::span<const Tensor> tensors,
                     std::optional<std::int64_t> expected);

}  // namespace weft::parallel
