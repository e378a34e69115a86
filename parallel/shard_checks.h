// What fully_shard looks at before it cuts a module. Private to parallel/.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/nn/module.h"

namespace weft::parallel {

struct FsdpUnit;

/// Parameters and buffers, a line each, for ranks that compare them.
std::string lines_of_uncut(const nn::ModuleBase& module);
std::vector<Tensor> buffers_of(const nn::ModuleBase& module);
/// Throws InvalidArgument if the parameters of the module belong to a unit that is not within it,
/// or is gone.
void check_order(const nn::ModuleBase& module);
/// Throws InvalidArgument for parameters that cannot be cut: without dimensions, of several dtypes
/// or devices, and those that share memory.
void check_can_be_cut(const nn::NamedTensors& parameters);
/// Throws for units that cannot be those of one model, the outermost one first: InvalidArgument if
/// one was called before, or is cut over another group, Unsupported if one is on another device.
/// And InvalidArgument on all ranks of the group if one of them is at another module.
void check_together(const std::vector<std::shared_ptr<FsdpUnit>>& units);
/// Throws InvalidArgument on all ranks of both groups if one of them cuts another module, or with
/// other options, `how`: one line. Those of a group of which no rank gives replicas do not hear of
/// ranks that give them as theirs: these throw.
void check_same_cut(comm::ProcessGroup& group, comm::ProcessGroup* replicas,
                    const nn::ModuleBase& module, const std::string& how);

}  // namespace weft::parallel
