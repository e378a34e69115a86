// How the ranks of a new group come together. Private to comm/.
#pragma once

#include <chrono>
#include <memory>

#include "weft/comm/backend/backend.h"
#include "weft/comm/group/operation.h"
#include "weft/comm/store/store.h"

namespace weft::comm {

/// Returns when all members have called it and their backends are connected. `store` has only keys
/// of this group. Throws PeerFailed when another rank of the run fails meanwhile, Timeout with the
/// ranks that have not come, and what `make` throws, each with the rank that failed first.
/// `timeout` counts three times: for coming, for connecting, and until all know that all are
/// connected.
std::unique_ptr<Backend> connect_members(const BackendMaker& make,
                                         const std::shared_ptr<Store>& store, Store& run_store,
                                         const Members& members, std::chrono::milliseconds timeout);

}  // namespace weft::comm
