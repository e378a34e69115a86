// The state of a module that fully_shard has cut, and of its optimiser, as one process has it: to
// save it, and to go on with any number of ranks.
#pragma once

#include "weft/comm/group/process_group.h"
#include "weft/nn/ema.h"
#include "weft/nn/module.h"
#include "weft/optim/optimizer.h"

namespace weft::parallel {

/// module.state_dict() with whole parameters, in host memory, on every rank. All ranks call it.
nn::NamedTensors whole_state(comm::ProcessGroup& group, const nn::ModuleBase& module);
/// Takes such values: each rank its rows. Throws InvalidArgument, before anything is changed, for a
/// name given twice, missing and unknown names, and other shapes.
void load_whole_state(const nn::ModuleBase& module, const nn::NamedTensors& values);

/// The same for an optimiser of the module's parameters, and for averages of them. Loading throws
/// as their load_state_dict().
nn::NamedTensors whole_state(comm::ProcessGroup& group, const nn::ModuleBase& module,
                             const optim::Optimizer& optimizer);
nn::NamedTensors whole_state(comm::ProcessGroup& group, const nn::ModuleBase& module,
                             const nn::ExponentialMovingAverage& averages);
void load_whole_state(const nn::ModuleBase& module, optim::Optimizer& optimizer,
                      const nn::NamedTensors& state);
void load_whole_state(const nn::ModuleBase& module, nn::ExponentialMovingAverage& averages,
                      const nn::NamedTensors& state);

}  // namespace weft::parallel
