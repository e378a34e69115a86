// Rendezvous: the processes of a run find each other in a store and agree that each rank is there
// once.
#pragma once

#include <memory>
#include <string>

#include "weft/comm/deadline.h"
#include "weft/comm/member.h"
#include "weft/comm/store.h"

namespace weft::comm {

/// What a process brings.
struct Joining {
  Member me;
  int size = 1;
  std::string backend;
};

/// Puts its name down and waits until all ranks have. Gives the run's keys: `store`, or, for a
/// process that joins there once more, a part of it. Throws
///   InvalidArgument  a rank has joined twice (on both, as long as others are missing), with
///                    another world size or backend, or listens where others cannot reach it
///   Timeout          naming the ranks that have not come
///   PeerFailed       the launcher tells of a rank that has failed (comm/failure.h)
std::shared_ptr<Store> join(const std::shared_ptr<Store>& store, const Joining& joining,
                            const Deadline& deadline);

/// The same in a file, which rank 0 makes and removes when all have come; they have it open then.
/// A file that an ended process left is replaced. `timeout` is what the store is given.
std::shared_ptr<Store> join_in_file(const std::string& path, const Joining& joining,
                                    std::chrono::milliseconds timeout, const Deadline& deadline);

}  // namespace weft::comm
