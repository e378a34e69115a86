// A barrier that says who is missing. Private to comm/.
#pragma once

#include <chrono>

#include "weft/comm/group/operation.h"
#include "weft/comm/store/store.h"

namespace weft::comm {

/// The `round`-th such barrier of the group. It uses only the store, so it also finds a rank that
/// hangs in an operation. Throws Timeout naming the ranks that did not come: rank 0 waits for each
/// rank, and tells the result to those that came.
void monitored_barrier(Store& store, const Members& members, int round,
                       std::chrono::milliseconds timeout);

}  // namespace weft::comm
