// The state of a module that fully_shard or parallelize has cut, and of its optimiser, in the form
// that one process has: to save it, and to go on with any number of ranks.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/nn/ema.h"
#include "weft/nn/module.h"
#include "weft/nn/state_parts.h"
#include "weft/optim/optimizer.h"

namespace weft::parallel {

/// module.state_dict() with whole parameters, in host memory, on every rank. All ranks call it.
/// `group`: that of the last cut; an earlier cut by parallelize knows its own group. Throws
/// InvalidArgument for another group than fully_shard's if that has cut some of the module.
nn::NamedTensors whole_state(comm::ProcessGroup& group, const nn::ModuleBase& module);
/// This rank's parts of that state, in the module's own memory; nothing is sent.
nn::StateParts state_parts(const nn::ModuleBase& module);
/// Loads a whole state: each rank reads its part and no other values. Throws InvalidArgument,
/// before anything is changed, for a name given twice, missing and unknown names, and other shapes.
void load_parts(const nn::ModuleBase& module, const nn::SavedState& saved);
void load_whole_state(const nn::ModuleBase& module, const nn::NamedTensors& values);

/// The same for an optimiser of the module's parameters, and for averages of them. Loading throws
/// as their load_state_dict().
nn::StateParts state_parts(const nn::ModuleBase& module, const optim::Optimizer& optimizer);
nn::StateParts state_parts(const nn::ModuleBase& module,
                           const nn::ExponentialMovingAverage& averages);
void load_parts(const nn::ModuleBase& module, optim::Optimizer& optimizer,
                const nn::SavedState& saved);
void load_parts(const nn::ModuleBase& module, nn::ExponentialMovingAverage& averages,
                const nn::SavedState& saved);
nn::NamedTensors whole_state(comm::ProcessGroup& group, const nn::ModuleBase& module,
                             const optim::Optimizer& optimizer);
nn::NamedTensors whole_state(comm::ProcessGroup& group, const nn::ModuleBase& module,
                             const nn::ExponentialMovingAverage& averages);
void load_whole_state(const nn::ModuleBase& module, optim::Optimizer& optimizer,
                      const nn::NamedTensors& state);
void load_whole_state(const nn::ModuleBase& module, nn::ExponentialMovingAverage& averages,
                      const nn::NamedTensors& state);

/// An optimiser of the parts, or an ExponentialMovingAverage, for checkpoints: its state_dict() is
/// the state of one process, on every rank, and load_state_dict() takes such a state, on any number
/// of ranks; parts() and load_parts() do it without gathering. The optimiser must outlive it.
template <class Part>
class StateOf {
 public:
  using StandsFor = Part;  ///< the class that metrics.json names
  StateOf(std::shared_ptr<comm::ProcessGroup> group, const nn::ModuleBase& module, Part& part)
      : group_(std::move(group)), module_(module), part_(part) {}

  nn::NamedTensors state_dict() const { return whole_state(*group_, module_, part_); }
  void load_state_dict(const nn::NamedTensors& state) { load_whole_state(module_, part_, state); }
  nn::StateParts parts() const { return state_parts(module_, part_); }
  void load_parts(const nn::SavedState& saved) { parallel::load_parts(module_, part_, saved); }

 private:
  std::shared_ptr<comm::ProcessGroup> group_;
  nn::ModuleBase module_;
  Part& part_;
};

/// Scales the gradients so that their norm over all ranks is at most max_norm, as
/// optim::clip_grad_norm; returns the norm before. A parameter that each rank has whole counts
/// once. All ranks call it. Throws InvalidArgument for a negative max_norm, and as whole_state().
Tensor clip_grad_norm(comm::ProcessGroup& group, const nn::ModuleBase& module, double max_norm);
/// The square of the norm, over all ranks, of the gradients of some parameters of the module: one
/// f64 number on their device.
Tensor squared_grad_norm(comm::ProcessGroup& group, const nn::ModuleBase& module,
                         const std::vector<Tensor>& parameters);

}  // namespace weft::parallel
