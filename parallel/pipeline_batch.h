// A batch on its way through the stages of a pipeline. Private to parallel/.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/autograd/deferred.h"
#include "weft/core/runtime/rng.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/parallel/pipeline_state.h"

namespace weft::parallel {

/// Through the stages and back. Of what other ranks run the cells stay empty.
class Pipeline::Batch {
 public:
  /// `rows`: as rows_of() tells them of the inputs.
  Batch(std::shared_ptr<State> state, std::span<const Tensor> inputs, std::int64_t rows);

  /// Both ways, with the loss of each micro-batch.
  Tensor step(std::span<const Tensor> targets, const Loss& loss);
  std::vector<Tensor> forward();
  /// From dL/doutputs of the whole batch to dL/dinputs.
  std::vector<Tensor> backward(std::span<const Tensor> grads);

 private:
  using TensorList = std::vector<Tensor>;
  using Kind = Action::Kind;
  using Wanted = bool (*)(Kind kind);

  // What one stage holds of one micro-batch, between its forward and its backward.
  struct Cell {
    TensorList inputs;                    // leaves on the stage's device
    TensorList outputs;                   // with the tape back to the inputs
    TensorList grads;                     // dL/doutputs
    bool recomputed = false;              // the outputs are computed again before the backward
    std::vector<std::uint32_t> versions;  // of the inputs' memory before the forward, then
    GeneratorSnapshot generators;         // with what the forward drew
    autograd::DeferredGradients of_weights;
    std::atomic<bool> forward_done = false, backward_done = false;
    // Of a neighbour on another rank: what it sent, and what it is to be sent.
    std::optional<Arrival> activations, gradients;
    std::atomic<bool> activations_there = false, gradients_there = false;
    TensorList next_inputs, input_grads;
  };

  Cell& cell(int stage, int micro_batch) {
    return *cells_[static_cast<std::size_t>(stage)][static_cast<std::size_t>(micro_batch)];
  }
  Cell& cell(const Action& action) { return cell(action.stage, action.micro_batch); }
  bool is_last(int stage) const { return stage + 1 == plan_->schedule.stages; }
  std::int64_t first_row(int micro_batch) const;
  std::string place_of(const Action& action) const;
  Tensor total_loss();
  TensorList joined_outputs();

  // Who runs what.
  void run(Wanted wanted);
  void run_on_workers(Wanted wanted);
  void run_among_ranks(Wanted wanted);
  void run_list(std::size_t list, Wanted wanted, std::vector<TimedAction>& timed);
  void note(std::span<const std::vector<TimedAction>> timed);

  // Who waits for whom.
  bool ready(const Action& action);
  /// False when another worker failed.
  bool wait_for(const Action& action);
  void done(const Action& action);
  void deliver(const Action& sent, Arrival arrival);
  void take_arrival(const Action& action);
  void stop();
  void fail(std::exception_ptr error) noexcept;

  // What they do.
  void perform(const Action& action);
  void forward_of(const Action& action);
  void recompute_of(const Action& action);
  void run_stage(const Action& action);
  void backward_of(const Action& action);

  const std::shared_ptr<State> state_;
  const std::vector<nn::AnyModule>& stages_;
  const Plan* plan_ = nullptr;
  const bool records_ = thread_state().grad_enabled;
  const ThreadState::AutocastTypes autocast_ = thread_state().autocast;
  const TensorList inputs_;
  TensorList targets_;
  const Loss* loss_ = nullptr;
  bool used_ = false;
  const std::int64_t rows_;
  std::vector<std::int64_t> sizes_;                           // rows of each micro-batch
  std::vector<bool> needs_grad_;                              // by stage: whether its outputs do
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
  // Lists of one device take turns: its generator and its memory's account are for one at a time.
  std::map<Device, std::mutex, DeviceOrder> turns_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> stopped_ = false;
  std::exception_ptr error_;  // among ranks: the first
};

}  // namespace weft::parallel
