// The stages of a pipeline that fully_shard or parallelize has cut. Private to parallel/.
//
// What fully_shard has cut is gathered before the first action of a batch, stays for all
// micro-batches, and collects their gradients, also those that are put off; after the last action
// it is given back, and the gradients are reduced: PyTorch's UNSHARD, RESHARD and REDUCE_GRAD.
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
  /// Throws InvalidArgument for a stage of this rank of which fully_shard has cut only a part, and
  /// for one whose units several groups share.
  explicit PipelineShards(const PipelineState& state);

  /// While it lives, the parameters are whole, and leaves in a batch with gradients.
  class Whole;

  /// The square of the norm of the gradients of `own`, this rank's parameters, with those of the
  /// other ranks that share them.
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
  // Throws InvalidArgument for a parameter that trains and is in no unit.
  static void check_averaged(const Stage& stage);
  // Over which it was cut last.
  static comm::ProcessGroup& group_of(const Stage& stage);

  std::vector<Stage> stages_;
  std::set<std::shared_ptr<comm::ProcessGroup>> layer_groups_;  // of parallelize
};

class PipelineShards::Whole {
 public:
  /// Gathers. All ranks with the same stages make one.
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
  // Gathers nothing yet. From here on ~Whole() gives back.
  explicit Whole(const PipelineShards* shards) : shards_(*shards) {}

  const PipelineShards& shards_;
  std::vector<FsdpEngine*> engines_;
  bool unfinished_ = thread_state().grad_enabled;
};

}  // namespace weft::parallel
