// The last call of each rank of a group, kept in the group's store: it tells for which ranks the
// others wait. Private to comm/.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "weft/comm/group/operation.h"
#include "weft/comm/store/store.h"

namespace weft::comm {

/// In the store of the run: changes for as long as a rank is busy (core/runtime/phase.h).
inline constexpr std::string_view kBusyKey = "progress/busy";

/// Publishes the call that this rank has begun, and in what it has been busy since, if in anything.
void publish_progress(Store& store, int rank, const Call& begun, const char* busy = nullptr);

/// The other ranks that have not published that they began collective `number`:
/// "rank 2, last seen in all_reduce 16 (bucket 1) at step 41, and rank 3, not seen yet"; empty if
/// all have. The information may be some seconds old.
std::string absent_ranks(Store& store, const Members& members, std::int64_t number);

/// Publishes that this rank has left the group, its work done. The others find it when they lose
/// the connection.
void publish_leave(Store& store, int rank, const Call& begun);

/// "rank 0 left the group after all_reduce 16 (bucket 1); all ranks must make the same calls": a
/// rank that left before collective `number`; empty if none has published so.
std::string rank_that_left(Store& store, const Members& members, std::int64_t number);

/// "10 s", "200 ms"
std::string to_text(std::chrono::milliseconds time);

}  // namespace weft::comm
