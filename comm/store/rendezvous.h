// Rendezvous: the processes of a run find each other in a store and check that each rank is there
// exactly once.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/comm/store/deadline.h"
#include "weft/comm/store/member.h"
#include "weft/comm/store/store.h"

namespace weft::comm {

/// What a process brings to the rendezvous.
struct Joining {
  Member me;
  std::vector<int> ranks;  ///< the numbers of all that join; the first one decides
  std::string backend;
  bool again = false;  ///< the remaining ranks of a run meet again
};

/// Publishes this rank's process and waits until all ranks have done so. Returns the store with the
/// run's keys: `store`, or a part of it if a process joins there once more. Throws
///   InvalidArgument  a rank has joined twice (on both, as long as others are missing), with
///                    another world size or backend, or listens where others cannot reach it
///   Timeout          naming the ranks that have not come
///   PeerFailed       the launcher reports a rank that has failed (comm/store/failure.h)
std::shared_ptr<Store> join(const std::shared_ptr<Store>& store, const Joining& joining,
                            const Deadline& deadline);

/// The process that joined as rank `rank`, from the store that join() returned; nothing if no
/// process did.
std::optional<Member> member_of(Store& run_store, int rank);

/// Like join(), with the store in a file. Rank 0 makes the file, and removes it when all have
/// opened it. A file that was left by a process that has ended is replaced. `timeout` becomes the
/// store's.
std::shared_ptr<Store> join_in_file(const std::string& path, const Joining& joining,
                                    std::chrono::milliseconds timeout, const Deadline& deadline);

}  // namespace weft::comm
