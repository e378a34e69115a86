// What fully_shard checks before it cuts a module. Private to parallel/.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/nn/module.h"

namespace weft::parallel {

struct FsdpUnit;

/// A line for each parameter and buffer, for ranks to compare.
std::string lines_of_uncut(const nn::ModuleBase& module);
std::vector<Tensor> buffers_of(const nn::ModuleBase& module);
/// Throws InvalidArgument if a unit to which parameters of the module belong is not within the
/// module, or is gone.
void check_order(const nn::ModuleBase& module);
/// Throws InvalidArgument for parameters that cannot be cut: parameters without dimensions, of
/// several dtypes or devices, or that share memory.
void check_can_be_cut(const nn::NamedTensors& parameters);
/// Throws if these units cannot belong to one model; the first one is the outermost.
/// InvalidArgument if one was called before or is cut over another group, Unsupported if one is on
/// another device; InvalidArgument on all ranks of the group if one rank is at another module.
void check_together(const nn::ModuleBase& module,
                    const std::vector<std::shared_ptr<FsdpUnit>>& units);
/// Throws InvalidArgument on all ranks of both groups if one rank cuts another module, or has other
/// options (`how`, one line). If no rank of a group gives replicas, but others name its ranks as
/// theirs, only these others throw.
void check_same_cut(comm::ProcessGroup& group, comm::ProcessGroup* replicas,
                    const nn::ModuleBase& module, const std::string& how);

}  // namespace weft::parallel
