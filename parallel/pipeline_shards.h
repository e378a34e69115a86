// The stages of a pipeline that fully_shard or parallelize has cut. Private to parallel/.
//
// Parameters that fully_shard has cut are gathered before the first action of a batch and stay
// whole for all micro-batches, whose gradients they collect, including those that are put off.
// After the last action the memory is given back and the gradients are reduced: PyTorch's UNSHARD,
// RESHARD and REDUCE_GRAD.
#pragma once

#include <memory>
#include <set>
#include <span>
#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/nn/any_module.h"
#include "weft/parallel/pipeline_state.h"
#include "weft/parallel/shard_engine.h"

namespace weft::parallel {

class PipelineShards {
 public:
  /// Throws InvalidArgument for a stage of this rank that fully_shard has cut only partly, or whose
  /// units are cut over several groups.
  explicit PipelineShards(const PipelineState& state);

  /// While it lives, the parameters are whole; in a batch with gradients they are leaves.
  class Whole;

  /// The square of the norm of the gradients of `own`, this rank's parameters, including the parts
  /// of them that other ranks have.
  Tensor squared_grad_norm(std::span<const Tensor> own) const;
  bool empty() const { return stages_.empty(); }
  void abort() const noexcept;

 private:
  using Units = std::vector<std::shared_ptr<FsdpUnit>>;
  struct Stage {
    int number;
    nn::AnyModule module;
    Units units;  // none if only parallelize has cut it
  };
  // Throws InvalidArgument for a trained parameter that is in no unit.
  static void check_averaged(const Stage& stage);
  // The group over which the stage was cut last.
  static comm::ProcessGroup& group_of(const Stage& stage);

  std::vector<Stage> stages_;
  std::set<std::shared_ptr<comm::ProcessGroup>> layer_groups_;  // of parallelize
};

class PipelineShards::Whole {
 public:
  /// Gathers the parameters. All ranks with the same stages must create one.
  explicit Whole(const PipelineShards& shards);
  ~Whole();
  Whole(const Whole&) = delete;
  Whole& operator=(const Whole&) = delete;

  /// After an action of the stage: adds gradients up in the dtype in which they are reduced, where
  /// that is another one than that of the leaves.
  void collect(int stage) const;
  /// Leaves the means of the ranks' gradients. Parameters without one count as zeros. Under
  /// FullySharded::NoSync the sums stay on each rank.
  void reduce();

 private:
  // Gathers nothing yet; but from now on ~Whole() runs, and gives back what was gathered.
  explicit Whole(const PipelineShards* shards) : shards_(*shards) {}

  const PipelineShards& shards_;
  std::vector<FsdpEngine*> engines_;
  bool unfinished_ = thread_state().grad_enabled;
};

}  // namespace weft::parallel
