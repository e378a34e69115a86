// Finds ranks that call different operations, before any data moves. Private to comm/.
#pragma once

#include "weft/comm/group/operation.h"

namespace weft::comm {

/// All ranks exchange 256 bytes that say what they are about to do. Throws Comm on all of them if
/// two differ in operation, dtype, count, root, reduction or tag: "operation 3: rank 0 calls
/// all_reduce of 10 f32 (bucket 1), rank 1 calls broadcast of 10 f32 (weights)". Not for send and
/// recv.
void check_fingerprints(const Operation& operation, const Members& members, Backend& backend,
                        const Deadline& deadline);

}  // namespace weft::comm
