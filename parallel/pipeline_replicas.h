// The replicas of a pipeline: the same stages in other pipelines, on other batches. Private to
// parallel/.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/nn/any_module.h"
#include "weft/parallel/pipeline_state.h"
#include "weft/parallel/reducer.h"
#include "weft/tensor/tensor.h"

namespace weft::parallel {

class PipelineReplicas {
 public:
  /// Copies rank 0's parameters and buffers of this process's stages to all replicas. Throws
  /// InvalidArgument for a trained parameter that two stages share, and for another model.
  explicit PipelineReplicas(const PipelineState& state);

  /// Copies rank 0's buffers, calls `step`, and averages the gradients that it made.
  Tensor step(const std::function<Tensor()>& step);
  /// Ends the operations that other replicas may be waiting for. A replica alone can go on.
  void abort() noexcept {
    if (group_->size() > 1) group_->abort();
  }

 private:
  void broadcast_buffers();

  const std::shared_ptr<comm::ProcessGroup> group_;
  std::vector<std::unique_ptr<Reducer>> reducers_;  // of the stages that train something
  std::vector<nn::AnyModule> untrained_;            // the other ones
};

}  // namespace weft::parallel
