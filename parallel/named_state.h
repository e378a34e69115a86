// State of one rank, told to the others. Private to parallel/.
#pragma once

#include "weft/comm/process_group.h"
#include "weft/optim/optimizer.h"

namespace weft::parallel {

/// root's names and values, in host memory and row-major, on every rank, whatever the others give.
/// All call it.
optim::NamedTensors broadcast_named(comm::ProcessGroup& group, optim::NamedTensors tensors,
                                    int root);

}  // namespace weft::parallel
