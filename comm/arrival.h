// Before the ranks of a group connect: that all of them have come, or which have not. Private to
// comm/.
#pragma once

#include <chrono>

#include "weft/comm/operation.h"
#include "weft/comm/store.h"

namespace weft::comm {

/// Returns when all members have called it, with the `store` of the group. Throws PeerFailed when
/// another rank of the run has failed meanwhile, as `run_store` says, and Timeout with the ranks
/// that have not come.
void await_members(Store& store, Store& run_store, const Members& members,
                   std::chrono::milliseconds timeout);

}  // namespace weft::comm
