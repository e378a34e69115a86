// Pipeline: the stages of a model on several devices, micro-batches of every batch between them.
//
//   nn::Sequential net = ...;
//   parallel::Pipeline pipe({net.slice(0, 3), net.slice(3, 6)}, {.chunks = 8});
//   optim::Adam adam(net.parameters());
//   ...
//   adam.zero_grad();
//   Tensor loss = pipe.step(
//       {x}, {target}, [](auto y, auto target) { return nn::mse_loss(y[0], target[0]); });
//   adam.step();
//
// Or as torchgpipe has it, with the loss of the whole batch:
//
//   nn::mse_loss(pipe(x), target).backward();
//
// Of several processes, each with a part of the stages, the same with a group:
//
//   auto group = comm::init_process_group();
//   parallel::Pipeline pipe(stages, {.chunks = 8, .group = group});
//
// What each device does, in which order, is data (schedule.h), made by name or read from a file.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/comm/process_group.h"
#include "weft/core/device.h"
#include "weft/nn/any_module.h"
#include "weft/optim/optimizer.h"
#include "weft/parallel/schedule.h"
#include "weft/parallel/simulate.h"
#include "weft/tensor/tensor.h"

namespace weft::parallel {

struct PipelineOptions {
  /// Of the schedule's lists of actions; empty: the first ones of the kind that the first stage is
  /// on. One may stand for several lists, which then take turns.
  std::vector<Device> devices = {};
  int chunks = 1;  ///< micro-batches of a batch
  Recompute checkpoint = Recompute::except_last;
  std::string schedule = "gpipe";  ///< schedule_names()
  /// In place of the above three: for batches of as many micro-batches as it has.
  std::optional<Schedule> actions = {};
  /// step(): the loss is a mean over rows, so that of a micro-batch counts by its share of them;
  /// else it is a sum.
  bool mean_loss = true;
  /// Rank r runs the schedule's list r; `devices` is then this rank's own, or empty for that of its
  /// first stage.
  std::shared_ptr<comm::ProcessGroup> group = {};
  /// The ranks that hold the same stages of other pipelines, each with batches of its own: step()
  /// leaves the mean of their gradients, as DistributedDataParallel does.
  std::shared_ptr<comm::ProcessGroup> replicas = {};
};

/// torchgpipe (pipeline.py, gpipe.py) with schedules of one's own. The stages are modules of any
/// type (nn::AnyModule) and stay the user's: what each of them gives is what the next one takes.
/// They are moved to their devices here; names, state dict and saving are those of the modules.
///
/// A batch is cut along dimension 0 as PyTorch's chunk cuts it: ceil(rows / chunks) rows a
/// micro-batch, the last one smaller, fewer micro-batches than chunks where there are few rows.
/// Parameters' gradients are added up over the micro-batches, in the order in which the schedule
/// runs the backwards of their stage. A micro-batch is recomputed with the random numbers and the
/// autocast of its forward; a stage that changes its inputs in place cannot be (InvalidArgument).
/// Batch norms see one micro-batch at a time; their statistics follow each.
///
/// Before the first batch, and one of other shapes or dtypes, a micro-batch goes through the stages
/// in evaluation mode: a stage that does not fit the one before it is named before anything runs.
/// With a group only before the first batch.
///
/// A device's worker (core/worker.h) runs its actions, waiting for what others make. When one
/// fails, the others stop after the action they are in, and its error is rethrown with stage and
/// micro-batch: gradients may be there in part then, and the next batch may be run. From one thread
/// at a time. In graph::capture it is Unsupported.
///
/// With a group its ranks make the pipeline together, and call the same together. Each of them
/// gives all stages, the same ones, and runs its own on the thread that calls; those of the others
/// stay where they are, with the values they have (all_gather()). Activations and gradients are
/// sent as soon as they are there and received in the background, so a stage may not change in
/// place what it has returned. A rank that fails in a batch ends the group: the others get
/// PeerFailed or Comm, and the pipeline is of no use afterwards. A parameter of several stages must
/// be on one rank.
///
/// With replicas rank 0's parameters and buffers become everybody's at first, and the buffers
/// before each step; gradients go by step() alone. A parameter without a gradient counts as zeros.
class Pipeline {
 public:
  /// outputs: those of the last stage for a micro-batch; targets: its part of them, on the last
  /// stage's device. Returns a tensor of one element. Called by the last stage's worker, and once
  /// more where that stage's forward is run again.
  using Loss =
      std::function<Tensor(std::span<const Tensor> outputs, std::span<const Tensor> targets)>;

  /// Throws Device when there are too few devices or one is not there, InvalidArgument without
  /// stages, for a schedule that check() refuses or that is of another number of stages or ranks.
  /// With a group what one rank throws is an error of all, and so is another pipeline on one of
  /// them.
  explicit Pipeline(std::vector<nn::AnyModule> stages, PipelineOptions options = {});

  /// One batch forward and backward by the schedule; the loss of the whole batch, without history,
  /// on the last stage's device, or with a group on every rank's. Every stage computes in the mode
  /// it is in. With a group only the rank of stage 0 reads the inputs and only that of the last one
  /// the targets, but all must give batches of the same number of rows.
  Tensor step(std::span<const Tensor> inputs, std::span<const Tensor> targets, const Loss& loss);
  Tensor step(std::initializer_list<Tensor> inputs, std::initializer_list<Tensor> targets,
              const Loss& loss) {
    return step(std::span(inputs.begin(), inputs.size()),
                std::span(targets.begin(), targets.size()), loss);
  }

  /// The last stage's outputs for the whole batch, on its device. All forwards of the schedule are
  /// run; with gradients enabled the result is on the tape, and its backward runs the rest of the
  /// schedule. Without them nothing is kept, and in evaluation mode nothing recomputed. With a
  /// group every rank gets the outputs, and with gradients enabled it is Unsupported.
  std::vector<Tensor> operator()(std::span<const Tensor> inputs);
  /// One to one. Throws InvalidArgument for another number of results.
  Tensor operator()(const Tensor& x);

  /// Of all stages, as a module's.
  bool is_training() const;
  void train(bool training = true);
  void eval() { train(false); }

  std::span<const nn::AnyModule> stages() const;
  /// Of each stage; with a group this rank's alone count.
  std::span<const Device> devices() const;
  /// Whether this process runs that stage.
  bool is_here(std::size_t stage) const;
  /// What a batch of `micro_batches` is run by.
  const Schedule& schedule(int micro_batches) const;
  /// What the last step, forward or backward did, as simulate() predicts it: seconds from its first
  /// action on, by the clock of the threads that ran them. CUDA devices go on after them: there the
  /// spans of a trace with device time tell (core/trace.h). With a group: of this rank's list, as
  /// that of device 0.
  const Timeline& timeline() const;

  /// With a group: makes all ranks' parameters and buffers those of the rank that runs their stage,
  /// to save or to test the whole model. All ranks call it.
  void all_gather();
  /// optimizer.state_dict(), with a group put together of what each rank has of its stages'
  /// parameters; the optimisers must have been made of the same list of parameters. All ranks call
  /// it.
  optim::NamedTensors all_gather_state(const optim::Optimizer& optimizer) const;

 private:
  struct Plan;
  struct State;
  class Batch;
  struct Apply;

  std::shared_ptr<State> state_;  // a result on the tape holds it, too
};

}  // namespace weft::parallel
