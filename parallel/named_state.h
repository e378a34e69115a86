// Copies the state of one rank to the others. Private to parallel/.
#pragma once

#include "weft/comm/group/process_group.h"
#include "weft/optim/optimizer.h"

namespace weft::parallel {

/// Returns root's names and values on every rank, row-major and in host memory; the other ranks'
/// `tensors` are ignored. All ranks call it.
optim::NamedTensors broadcast_named(comm::ProcessGroup& group, optim::NamedTensors tensors,
                                    int root);

}  // namespace weft::parallel
