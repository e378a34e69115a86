// The stages' work on one batch. Private to parallel/.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/autograd/deferred.h"
#include "weft/core/runtime/rng.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/nn/any_module.h"
#include "weft/parallel/pipeline_options.h"
#include "weft/parallel/pipeline_state.h"
#include "weft/parallel/schedule.h"
#include "weft/parallel/simulate.h"
#include "weft/tensor/tensor.h"

namespace weft::parallel {

/// "backward_input"
const char* name_of(Action::Kind kind);

Tensor sum_of(const std::vector<Tensor>& parts);

/// One batch, through the stages and back.
class PipelineBatch {
 public:
  using Wanted = bool (*)(Action::Kind kind);

  /// Sends results to stages of other processes, and receives theirs.
  class Exchange {
   public:
    virtual ~Exchange() = default;

    /// Runs this process's list of actions, of the wanted kinds.
    virtual void run(Wanted wanted) = 0;
    /// As the batch's perform(), for any action of the list.
    virtual double perform(const Action& action) = 0;
  };

  // What one stage holds of one micro-batch, between its forward and its backward.
  struct Cell {
    std::vector<Tensor> inputs;           // leaves on the stage's device
    std::vector<Tensor> outputs;          // with the tape back to the inputs
    std::vector<Tensor> grads;            // dL/doutputs
    bool recomputed = false;              // the outputs are computed again before the backward
    std::vector<std::uint32_t> versions;  // of the inputs' memory, before the forward
    GeneratorSnapshot generators;         // as they were before the forward
    autograd::DeferredGradients of_weights;
    std::atomic<bool> forward_done = false, backward_done = false;
  };

  /// `rows`: the result of rows_of() for the inputs.
  PipelineBatch(std::shared_ptr<PipelineState> state, std::span<const Tensor> inputs,
                std::int64_t rows);

  /// Forward and backward, with the loss of each micro-batch. Returns the sum of the losses;
  /// undefined if another process runs the last stage.
  Tensor step(std::span<const Tensor> targets, const PipelineLoss& loss);
  /// The last stage's outputs; none if another process runs that stage.
  std::vector<Tensor> forward();
  /// Computes dL/dinputs from dL/doutputs of the whole batch.
  std::vector<Tensor> backward(std::span<const Tensor> grads);

  /// For an Exchange, which must outlive the calls above.
  void set_exchange(Exchange& exchange) { exchange_ = &exchange; }
  const Schedule& schedule() const { return plan_->schedule; }
  std::int64_t rows() const { return rows_; }
  Cell& cell(int stage, int micro_batch) {
    return *cells_[static_cast<std::size_t>(stage)][static_cast<std::size_t>(micro_batch)];
  }
  void run_list(std::size_t list, Wanted wanted, std::vector<TimedAction>& timed);
  /// Runs the action. Returns when it began, in seconds.
  double perform(const Action& action);
  /// Wakes the workers that wait for the action.
  void done(const Action& action);
  /// Wakes all workers; they run no further action.
  void stop();
  /// Makes the timeline of the actions of each list.
  void note(std::span<const std::vector<TimedAction>> timed);

 private:
  using TensorList = std::vector<Tensor>;
  using Kind = Action::Kind;

  Cell& cell(const Action& action) { return cell(action.stage, action.micro_batch); }
  bool is_last(int stage) const { return stage + 1 == plan_->schedule.stages; }
  std::int64_t first_row(int micro_batch) const;
  std::string place_of(const Action& action) const;
  TensorList joined_outputs();

  void run(Wanted wanted);
  void run_on_workers(Wanted wanted);

  bool ready(const Action& action);
  /// False when another worker failed.
  bool wait_for(const Action& action);

  void forward_of(const Action& action);
  void recompute_of(const Action& action);
  void run_stage(const Action& action);
  void backward_of(const Action& action);
  // Within autograd::grad(), which leaves the .grad() of parameters alone.
  static void grad_of_inputs(const TensorList& outputs, const TensorList& grads,
                             const TensorList& inputs);

  const std::shared_ptr<PipelineState> state_;
  const std::vector<nn::AnyModule>& stages_;
  const PipelinePlan* plan_ = nullptr;
  Exchange* exchange_ = nullptr;
  const bool records_ = thread_state().grad_enabled;
  const ThreadState::AutocastTypes autocast_ = thread_state().autocast;
  const TensorList inputs_;
  TensorList targets_;
  const PipelineLoss* loss_ = nullptr;
  bool used_ = false;
  const std::int64_t rows_;
  std::vector<std::int64_t> sizes_;                           // rows of each micro-batch
  std::vector<bool> needs_grad_;                              // by stage: for its outputs
  std::vector<autograd::DeferredGradients::Leaves> weights_;  // by stage
  std::vector<std::vector<std::int64_t>> output_rows_;  // by output and micro-batch; -1: a scalar
  std::vector<std::vector<std::unique_ptr<Cell>>> cells_;  // by stage and micro-batch
  TensorList losses_;                                      // by micro-batch
  std::vector<TensorList> input_grads_;                    // by micro-batch

  struct DeviceOrder {
    bool operator()(Device a, Device b) const {
      return std::pair(a.type, a.index) < std::pair(b.type, b.index);
    }
  };
  // Lists of one device take turns: only one at a time may use its generator and memory account.
  std::map<Device, std::mutex, DeviceOrder> turns_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> stopped_ = false;
};

}  // namespace weft::parallel
