// The backends there are. Each is a BackendMaker.
#pragma once

#include <memory>
#include <string>

#include "weft/comm/backend.h"
#include "weft/comm/process_group.h"

namespace weft::comm {

/// weft's own: a TCP connection between each two ranks, collectives as in comm/collectives.h.
/// Listens on `local_addr` while the ranks meet; a connection whose other end does not say the
/// group's number, which is in the store, is closed.
BackendMaker ring_backend(std::string local_addr);
/// Gloo's connections and buffers under the same collectives: its own all-reduce cannot be aborted,
/// and misses the death of a rank now and then. Throws Unsupported in a build without Gloo.
///
/// Only for networks without strangers: Gloo asks nobody who connects to `local_addr` for anything,
/// listens as long as the group lives, and ends the process (std::terminate in its own thread) if
/// somebody connects and resets the connection at once, as a port scan does.
BackendMaker gloo_backend(std::string local_addr);
/// Shared memory of the ranks of one host. Throws Unsupported, on all ranks, where there are
/// others.
BackendMaker shm_backend();
/// Threads of one process, which copy out of each other's memory.
BackendMaker thread_backend();

}  // namespace weft::comm
