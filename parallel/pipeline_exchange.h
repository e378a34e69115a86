// How a batch gets to the stages of other ranks, and back. Private to parallel/.
#pragma once

#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "weft/parallel/pipeline_batch.h"
#include "weft/parallel/pipeline_state.h"
#include "weft/parallel/stage_links.h"

namespace weft::parallel {

/// The cells of other ranks' stages hold the results of this rank until they are sent. An action of
/// another rank counts as done when its results have arrived here.
class PipelineExchange final : public PipelineBatch::Exchange {
 public:
  PipelineExchange(PipelineBatch& batch, const PipelineState& state, StageLinks& links);

  void run(PipelineBatch::Wanted wanted) override;
  double perform(const Action& action) override;

  std::function<void(int stage)> after_action;  ///< of the batch's own kinds, if there is one

 private:
  StageLinks::Sends sends_to_here(PipelineBatch::Wanted wanted) const;
  void send(const Action& action);
  void deliver(const Action& sent, Arrival arrival);
  void take_arrival(const Action& action);
  void fail(std::exception_ptr error) noexcept;

  PipelineBatch& batch_;
  const PipelineState& state_;
  StageLinks& links_;
  std::mutex mutex_;
  std::map<std::tuple<Action::Kind, int, int>, Arrival> arrived_;  // by kind, stage, micro-batch
  std::exception_ptr error_;                                       // the first
};

}  // namespace weft::parallel
