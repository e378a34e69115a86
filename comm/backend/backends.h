// All backends. Each is a BackendMaker.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "weft/comm/backend/backend.h"

namespace weft::comm {

/// weft's own: TCP connections between the neighbours of a ring, and between two other ranks from
/// their first message on; collectives as in comm/backend/collectives.h. Listens on `local_addr`
/// until all are connected. A connection is closed if its other end does not send the group's
/// number, which is in the store.
BackendMaker ring_backend(std::string local_addr);
/// Gloo's connections and buffers with the same collectives. Gloo's own all-reduce is not used: it
/// cannot be aborted and sometimes misses the death of a rank. Throws Unsupported in a build
/// without Gloo.
///
/// Only for networks without strangers: Gloo does not check who connects to `local_addr`, listens
/// as long as the group lives, and ends the process (std::terminate in its own thread) if somebody
/// connects and resets the connection at once, as a port scan does.
BackendMaker gloo_backend(std::string local_addr);
/// Memory shared by the ranks of one host. Throws Unsupported on all ranks if they are on several
/// hosts.
BackendMaker shm_backend();
/// Ranks are threads of one process, which copy from each other's memory.
BackendMaker thread_backend();

/// Base of a user's backend that sends its messages over the connections of another backend: it has
/// a name and overrides the collectives that it does in its own way.
///   struct Mine : comm::BackendOver { ... };
///   comm::init_process_group({.make_backend = comm::backend_over<Mine>(comm::shm_backend())});
class BackendOver : public Backend {
 public:
  explicit BackendOver(std::unique_ptr<Backend> connections)
      : Backend(connections->rank(), connections->size()), connections_(std::move(connections)) {}

  void exchange(std::span<const Outgoing> out, std::span<const Incoming> in,
                const Deadline& deadline) override {
    const Traffic before = connections_->traffic();
    connections_->exchange(out, in, deadline);
    const Traffic& after = connections_->traffic();
    traffic_.bytes_sent += after.bytes_sent - before.bytes_sent;
    traffic_.bytes_received += after.bytes_received - before.bytes_received;
    traffic_.messages_sent += after.messages_sent - before.messages_sent;
  }
  void abort() noexcept override { connections_->abort(); }
  void wake() noexcept override { connections_->wake(); }
  void set_links(const ThinLinks& links) override { connections_->set_links(links); }

 private:
  const std::unique_ptr<Backend> connections_;
};

/// Makes a T over the backend that `connections` makes.
template <class T>
BackendMaker backend_over(BackendMaker connections) {
  return [connections = std::move(connections)](const std::shared_ptr<Store>& store, int rank,
                                                int size, const Deadline& deadline) {
    return std::make_unique<T>(connections(store, rank, size, deadline));
  };
}

}  // namespace weft::comm
