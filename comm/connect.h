// How the ranks of a new group come together. Private to comm/.
#pragma once

#include <chrono>
#include <memory>

#include "weft/comm/operation.h"
#include "weft/comm/process_group.h"
#include "weft/comm/store.h"

namespace weft::comm {

/// Returns when all members have called it, with the `store` of the group, and their backends are
/// connected. Throws PeerFailed when another rank of the run has failed meanwhile, as `run_store`
/// says; Timeout with the ranks that have not come; and what `make` throws, with the rank that
/// failed first. `timeout` is for coming, and again for connecting.
std::unique_ptr<Backend> connect_members(const BackendMaker& make, const Store& store,
                                         Store& run_store, const Members& members,
                                         std::chrono::milliseconds timeout);

}  // namespace weft::comm
