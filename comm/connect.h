// How the ranks of a new group come together. Private to comm/.
#pragma once

#include <chrono>
#include <memory>
#include <utility>

#include "weft/comm/failure.h"
#include "weft/comm/operation.h"
#include "weft/comm/process_group.h"
#include "weft/comm/store.h"
#include "weft/core/base/error.h"

namespace weft::comm {

/// Returns when all members have called it and their backends are connected. `store` has keys of
/// this group alone. Throws PeerFailed when another rank of the run fails meanwhile, Timeout with
/// the ranks that have not come, and what `make` throws, with the rank that failed first. `timeout`
/// is for coming, again for connecting, and again until all know that all are connected.
std::unique_ptr<Backend> connect_members(const BackendMaker& make,
                                         const std::shared_ptr<Store>& store, Store& run_store,
                                         const Members& members, std::chrono::milliseconds timeout);

/// An error while connections were being made: they are closed with it. Whoever sees one of them
/// closed then finds in the store why this rank leaves, and does not blame this rank.
class ConnectError : public Error {
 public:
  ConnectError(const Error& error, std::shared_ptr<void> connections)
      : Error(error), connections_(std::move(connections)) {}

  void close_connections() { connections_.reset(); }

 private:
  std::shared_ptr<void> connections_;
};

/// f(), whose exceptions leave as a ConnectError with `connections`.
template <class F>
auto closing_late(const std::shared_ptr<void>& connections, F&& f) {
  try {
    return std::forward<F>(f)();
  } catch (...) {
    throw ConnectError(caught_error("connect"), connections);
  }
}

}  // namespace weft::comm
