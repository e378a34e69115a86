// The parts of a pipeline over several processes that the ranks do together. Private to parallel/.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/optim/optimizer.h"
#include "weft/parallel/pipeline_batch.h"
#include "weft/parallel/pipeline_options.h"
#include "weft/parallel/pipeline_shards.h"
#include "weft/parallel/pipeline_state.h"
#include "weft/parallel/stage_links.h"
#include "weft/tensor/tensor.h"

namespace weft::parallel {

/// Rank r runs list r of the schedule. All ranks create one and call its functions together.
class PipelineRanks {
 public:
  /// Places this rank's stages, checks that all ranks have the same pipeline, and connects this one
  /// to its neighbours. The error of one rank is thrown on all.
  explicit PipelineRanks(std::shared_ptr<PipelineState> state);

  /// As PipelineState::try_stages(), but only before the first batch.
  void try_stages(std::span<const Tensor> inputs, std::int64_t rows);
  /// As PipelineBatch::step() and forward(); all ranks get the results.
  Tensor step(PipelineBatch& batch, std::span<const Tensor> targets, const PipelineLoss& loss);
  std::vector<Tensor> forward(PipelineBatch& batch);
  /// optim::clip_grad_norm() with the norm of the gradients of all ranks. `own`: this rank's
  /// parameters.
  Tensor clip_grad_norm(std::span<const Tensor> own, double max_norm);

  /// As in Pipeline.
  comm::Traffic traffic() const { return links_->traffic(); }
  void all_gather();
  optim::NamedTensors all_gather_state(const optim::NamedTensors& own,
                                       std::span<const Tensor> parameters);
  optim::NamedTensors all_gather_named(const optim::NamedTensors& own);
  /// Ends all operations that other ranks may be waiting for.
  void abort() noexcept;

 private:
  void place_stages();
  void check_stages() const;
  void check_whole(const char* what) const;
  void check_alike(const std::exception_ptr& mistake);
  void connect();

  const std::shared_ptr<PipelineState> state_;
  comm::ProcessGroup& group_;
  std::unique_ptr<StageLinks> links_;
  std::unique_ptr<const PipelineShards> shards_;
  bool tried_ = false;
  std::optional<DType> loss_dtype_;  // of the first loss of the last stage's rank
};

}  // namespace weft::parallel
