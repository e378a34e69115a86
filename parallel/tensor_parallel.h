// parallelize: each rank keeps a part of the weights of some layers and computes with it (tensor
// parallelism).
//
//   const auto tp = parallel::parallelize(model, *mesh["tp"], {
//       {"attention", parallel::HeadParallel{}},
//       {"mlp.0", parallel::ColwiseParallel{}},
//       {"mlp.2", parallel::RowwiseParallel{}}});
//   optim::Adam adam(model.parameters(), {.lr = 1e-3});  // the parts, and what is not cut
//
// Two matrix products in succession need one sum over the ranks: the first is cut by its outputs,
// the second by its inputs, and what lies between works on parts, element by element:
//
//   rank 0   x -> first half of W1  -> gelu -> first half of W2  --+
//                                                                  +-- sum, + bias -> y
//   rank 1   x -> second half of W1 -> gelu -> second half of W2 --+
//
// All ranks have the same x and y. Forward sends one all-reduce, backward one, of x's gradient
// (Shoeybi et al., "Megatron-LM", arXiv 1909.08053). With sequence parallelism each rank has only a
// part of the sequence of x and y: an all-gather of x and a reduce-scatter of y replace the sum,
// and the layers between such blocks compute with parts, too (Korthikanti et al., "Reducing
// Activation Recomputation in Large Transformer Models", arXiv 2205.05198).
#pragma once

#include <memory>
#include <utility>

#include "weft/comm/group/process_group.h"
#include "weft/nn/module.h"
#include "weft/parallel/collectives.h"
#include "weft/parallel/parallel_styles.h"
#include "weft/parallel/sharded_state.h"

namespace weft::parallel {

class LayerExchange;

/// A handle on a module that is cut.
class Parallelized {
 public:
  /// For operations of all ranks outside the plan's layers, such as cross_entropy.
  const Collectives& ranks() const;
  nn::ModuleBase module() const { return module_; }

  // All ranks call these functions.

  /// Parameters and buffers by name, as one process has them, in host memory, on every rank.
  nn::NamedTensors state_dict() const;
  /// Loads such values. Throws as load_whole_state() (sharded_state.h).
  void load_state_dict(const nn::NamedTensors& values) const;
  /// This rank's parts of the state, without gathering.
  nn::StateParts parts() const { return state_parts(module_); }
  void load_parts(const nn::SavedState& saved) const { parallel::load_parts(module_, saved); }
  /// The whole state of an optimiser of the parts, or of averages (sharded_state.h):
  ///   auto state = tp.state_of(adam);
  ///   recorder.save(tp, loader, state);
  template <class Part>
  StateOf<Part> state_of(Part& part) const {
    return {group(), module_, part};
  }
  /// Scales the gradients so that the norm of the whole ones is at most max_norm, as
  /// optim::clip_grad_norm; returns the norm before. A parameter that is not cut counts once.
  Tensor clip_grad_norm(double max_norm) const;

  /// What this rank has sent and received for the module.
  comm::Traffic traffic() const;

 private:
  friend Parallelized parallelize(const nn::ModuleBase&, comm::ProcessGroup&, const ParallelPlan&);
  Parallelized(const nn::ModuleBase& module, std::shared_ptr<LayerExchange> exchange)
      : module_(module), exchange_(std::move(exchange)) {}
  const std::shared_ptr<comm::ProcessGroup>& group() const;

  nn::ModuleBase module_;
  std::shared_ptr<LayerExchange> exchange_;
};

/// Cuts the weights of the modules that the plan names, as torch.distributed.tensor.parallel's
/// parallelize_module. All ranks of the group call it, for the same module with the same plan.
/// First all ranks take rank 0's values and buffers, and the state of its generator for the
/// module's device, since all ranks must draw the same random numbers. To seed afterwards, use
/// default_generator(device).manual_seed() for that device: manual_seed() gives GPUs of different
/// numbers different seeds.
///
/// All ranks then call the same modules in the same order with the same whole tensors: give them
/// the same batches. They get the same results, losses and gradients, equal to those of one process
/// except for the order of sums. Modules that the plan does not name compute on every rank. Those
/// between ColwiseParallel and RowwiseParallel see parts: they must work element by element. A
/// Dropout there must be in the plan, as DropoutParallel or in SequenceParallel: by itself it draws
/// the same mask on all ranks, as the function dropout() does.
///
/// Mistakes that would silently give wrong numbers are looked for where that costs little. In the
/// first call of a layer of the plan, without a tape and with one, the ranks compare its first
/// argument: it must be the same tensor where the plan says Replicate, and not the whole result of
/// the layer before where it says Shard. In the first backward in which they are not 0, the ranks
/// compare the gradients of parameters that each has whole: they differ if a module outside the
/// plan computes with a part. The comparison sees the effect of gradient hooks that were added
/// before, not of later ones. Both throw InvalidArgument on every rank, naming the layer or the
/// parameter.
///
/// Make optimisers, averages and engines afterwards. DistributedDataParallel over another axis of
/// the mesh takes the parts as ordinary parameters; fully_shard over such an axis cuts them again,
/// and then its handle has the states and the norm. Move and convert the module before: clone(),
/// replicate() and to() throw Unsupported. Its state_dict() has this rank's parts: use that of
/// Parallelized. Only calls of modules, as module(x), exchange tensors: module.forward(x), or a
/// function of a member's weight, computes with parts.
///
/// Throws InvalidArgument on every rank if one has another module or another plan; for a path that
/// names no module, for a module that two paths name or that lies within one that is named, for a
/// style that is not for the module's type and a layout that the style does not have; for a number
/// of outputs, inputs or heads that the number of ranks does not divide, for a module that is cut
/// already, for a parameter that another module uses in another way, and for an Embedding with a
/// padding_idx. Calls throw Shape if a dimension does not divide.
Parallelized parallelize(const nn::ModuleBase& module, comm::ProcessGroup& group,
                         const ParallelPlan& plan);

}  // namespace weft::parallel
