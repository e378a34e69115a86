// A barrier that says who is missing. Private to comm/.
#pragma once

#include <chrono>

#include "weft/comm/operation.h"
#include "weft/comm/store.h"

namespace weft::comm {

/// Through the store alone, so that a rank that hangs in an operation is found, too. The `round`-th
/// one of the group. Throws Timeout naming the ranks that did not come: rank 0 waits for each, and
/// tells all that came.
void monitored_barrier(Store& store, const Members& members, int round,
                       std::chrono::milliseconds timeout);

}  // namespace weft::comm
