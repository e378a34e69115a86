// A store in one process, which the others reach by TCP.
#pragma once

#include <memory>
#include <string>

#include "weft/comm/store/store.h"

namespace weft::comm {

/// Serves a store from its own thread until it is destroyed. Frames and keys are bounded; the
/// connection of a client that sends anything else, or nothing, is closed and disturbs no other.
class TcpStoreServer {
 public:
  struct Options {
    std::string host = "127.0.0.1";
    int port = 0;       ///< 0: a free one
    std::string token;  ///< what clients must know; empty: nothing
    /// The connection of a client that has not sent the token by then is closed.
    std::chrono::milliseconds hello_time{10'000};
  };

  /// Throws Comm when it cannot listen there, InvalidArgument without a token on other addresses
  /// than loopback.
  explicit TcpStoreServer(Options options);
  ~TcpStoreServer();

  int port() const;
  /// The served keys, without a connection.
  std::unique_ptr<Store> store() const;
  /// Returns when no client is connected, or at the deadline.
  void wait_for_clients_to_leave(const Deadline& deadline) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A client. Throws Timeout if no server listens there by the deadline, InvalidArgument if the
/// server refuses the token, or without a token on other addresses than loopback. A get() that the
/// server does not answer ends up to 2 s after its deadline.
///
/// After a call that the server has not answered in time (Timeout) the next one makes a new
/// connection. Whether the server has done what it was asked for, or does it later, is not known
/// then: a set() may come after a later one, an add() that is called again may count twice.
class TcpStore final : public Store {
 public:
  /// `owner`: who hosts it, for messages, as "rank 0".
  TcpStore(std::string host, int port, std::string token, const Deadline& deadline,
           std::string owner = "");
  ~TcpStore() override;

  std::unique_ptr<Store> duplicate() const override;
  std::string describe() const override;

 private:
  struct Impl;
  class Turn;
  explicit TcpStore(std::unique_ptr<Impl> impl);
  void do_set(const std::string& key, std::string_view value, const Deadline&) override;
  std::optional<std::string> do_get(const std::string& key, const Deadline&) override;
  std::optional<std::string> do_try_get(const std::string& key, const Deadline&) override;
  std::int64_t do_add(const std::string& key, std::int64_t delta, const Deadline&) override;
  std::string do_set_once(const std::string& key, std::string_view value, const Deadline&) override;
  bool do_erase(const std::string& key, const Deadline&) override;

  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::comm
