// Pipeline: the stages of a model on several devices, with micro-batches moving between them.
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
// Or as in torchgpipe, with the loss of the whole batch:
//
//   nn::mse_loss(pipe(x), target).backward();
//
// Over several processes, each with a part of the stages: the same with a group:
//
//   auto group = comm::init_process_group();
//   parallel::Pipeline pipe(stages, {.chunks = 8, .group = group});
//
// Each device's actions and their order are data (schedule.h), made by name or read from a file.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/core/base/device.h"
#include "weft/nn/any_module.h"
#include "weft/optim/optimizer.h"
#include "weft/parallel/pipeline_options.h"
#include "weft/parallel/schedule.h"
#include "weft/parallel/simulate.h"
#include "weft/tensor/tensor.h"

namespace weft::parallel {

class PipelineRanks;
class PipelineReplicas;
struct PipelineState;

/// torchgpipe (pipeline.py, gpipe.py), with any schedule. The stages are modules of any type
/// (nn::AnyModule) and stay the user's; each takes the results of the one before it. They are moved
/// to their devices here; names, state dict and saving do not change.
///
/// A batch is cut along dimension 0 like PyTorch's chunk does: ceil(rows / chunks) rows a
/// micro-batch, the last one smaller, and fewer micro-batches than chunks if there are few rows.
/// Parameters' gradients are added up over the micro-batches, in the order in which the schedule
/// runs the backwards of their stage. A micro-batch is recomputed with the random numbers and the
/// autocast of its forward; a stage that changes its inputs in place cannot be recomputed
/// (InvalidArgument). Batch norms use one micro-batch at a time, and each updates their running
/// statistics.
///
/// Before the first batch, and before each one of other shapes or dtypes, a micro-batch goes
/// through the stages in evaluation mode, so that a stage that does not fit the one before it is
/// reported before anything runs. With a group this happens only before the first batch.
///
/// A device's worker (core/runtime/worker.h) runs its actions, and waits for the results of others
/// that they need. When an action fails, the other workers stop after their current one, and the
/// error is rethrown with stage and micro-batch. Gradients may then be incomplete; the next batch
/// may be run. From one thread at a time. Unsupported in graph::capture.
///
/// With a group its ranks make the pipeline together, and make the same calls together. Each rank
/// passes all stages, the same ones, or a factory, and runs its own on the calling thread; the
/// stages of the other ranks keep their devices and their values (all_gather()). Activations and
/// gradients are sent as soon as they are ready and received in the background, so a stage must not
/// change in place what it has returned. A rank that fails in a batch ends the group: the others
/// get PeerFailed or Comm, and the pipeline cannot be used afterwards. A parameter that several
/// stages share must be on one rank.
///
/// With replicas, rank 0's parameters and buffers are first copied to all replicas, and its buffers
/// again before each step; only step() averages gradients. A parameter without a gradient counts as
/// zeros. Two stages must then not share a parameter that is trained.
class Pipeline {
 public:
  using Loss = PipelineLoss;

  /// Throws Device when there are too few devices or one does not exist; InvalidArgument without
  /// stages, and for a schedule that check() refuses or that has another number of stages or ranks.
  /// With a group an error of one rank is thrown on all ranks; a rank with another pipeline is such
  /// an error.
  explicit Pipeline(std::vector<nn::AnyModule> stages, PipelineOptions options = {});
  /// Calls the factory for each stage that this process runs, first to last; stages() has empty
  /// ones in the places of the others. So a model may be larger than a rank's memory. Ranks do not
  /// compare such stages, nor notice a parameter that stages of two ranks should share; each saves
  /// and loads its own (all_gather_named()). A rank whose stages have no parameters uses the device
  /// of the options. Throws as above, and what the factory throws: then replicas get Comm, and the
  /// caller must abort other groups that the factory uses.
  Pipeline(std::size_t stages, const StageFactory& factory, PipelineOptions options = {});

  /// Runs one batch forward and backward by the schedule. Returns the loss of the whole batch,
  /// detached, on the last stage's device, or with a group on each rank's. Each stage keeps its
  /// training mode. With a group only the rank of stage 0 reads the inputs and only the rank of the
  /// last stage reads the targets, but all must pass batches of the same number of rows.
  Tensor step(std::span<const Tensor> inputs, std::span<const Tensor> targets, const Loss& loss);
  Tensor step(std::initializer_list<Tensor> inputs, std::initializer_list<Tensor> targets,
              const Loss& loss) {
    return step(std::span(inputs.begin(), inputs.size()),
                std::span(targets.begin(), targets.size()), loss);
  }

  /// The last stage's outputs for the whole batch, on its device. All forwards of the schedule are
  /// run. With gradients enabled the result is on the tape, and its backward runs the rest of the
  /// schedule; autograd::grad() then gives gradients of the inputs, not of parameters. Without them
  /// no activations are kept. In evaluation mode nothing is recomputed. With a group every rank
  /// gets the outputs, and gradients must be disabled (else Unsupported).
  std::vector<Tensor> operator()(std::span<const Tensor> inputs);
  /// For one input and one output. Throws InvalidArgument for another number of outputs.
  Tensor operator()(const Tensor& x);

  /// After step(): optim::clip_grad_norm() of the gradients of all stages, also those of other
  /// ranks. Returns the norm before scaling; with a group all ranks call it and get the same. A
  /// parameter that two stages share counts once. Throws InvalidArgument for a max_norm below 0.
  Tensor clip_grad_norm(double max_norm);

  /// The training mode of all stages; the functions are those of a module.
  bool is_training() const;
  void train(bool training = true);
  void eval() { train(false); }

  std::span<const nn::AnyModule> stages() const;
  /// The device of each stage; with a group only those of this rank's stages are meaningful.
  std::span<const Device> devices() const;
  /// Whether this process runs that stage.
  bool is_here(std::size_t stage) const;
  /// The schedule for a batch of `micro_batches`.
  const Schedule& schedule(int micro_batches) const;
  /// The actions of the last step, forward or backward, in the form of simulate()'s predictions:
  /// seconds from the first action on, measured by the threads that ran them. CUDA devices go on
  /// after those: for their times use a trace with device time (core/trace/trace.h). With a group:
  /// this rank's list, as that of device 0.
  const Timeline& timeline() const;

  /// What this rank has exchanged with the ranks of the neighbouring stages, over the pipeline's
  /// own groups; the groups of the options count all other traffic. Zero within one process.
  comm::Traffic traffic() const;

  /// With a group: copies each stage's parameters and buffers from the rank that runs it to all
  /// ranks, to save or to test the whole model. All ranks call it. This function and the next throw
  /// Unsupported for stages from a factory and for cut stages.
  void all_gather();
  /// optimizer.state_dict(). With a group it is put together from the states that each rank has for
  /// the parameters of its stages. The optimisers must have been made with the same list of
  /// parameters. All ranks call it.
  optim::NamedTensors all_gather_state(const optim::Optimizer& optimizer) const;
  /// Joins the states that the ranks have of their own stages, on every rank, first rank first: in
  /// host memory, or within one process as it is. All ranks call it. Throws InvalidArgument for a
  /// name that is given twice, and ends the group.
  optim::NamedTensors all_gather_named(const optim::NamedTensors& own) const;

 private:
  /// Calls f(). On an error it aborts the groups, so that the other ranks do not wait.
  template <class F>
  auto or_abort(const F& f) const {
    try {
      return f();
    } catch (...) {
      abort();
      throw;
    }
  }
  void abort() const;
  void start();
  void try_stages(std::span<const Tensor> inputs, std::int64_t rows) const;

  std::shared_ptr<PipelineState> state_;  // a result on the tape holds it, too
  std::shared_ptr<PipelineRanks> ranks_;  // with a group
  std::shared_ptr<PipelineReplicas> replicas_;
};

}  // namespace weft::parallel
