// A store in one process, which the others reach by TCP.
#pragma once

#include <memory>
#include <string>

#include "weft/comm/store/store.h"

namespace weft::comm {

/// Serves a store from its own thread until it is destroyed. Frames and keys are bounded. If a
/// client sends anything else, or nothing, only its own connection is closed.
class TcpStoreServer {
 public:
  struct Options {
    std::string host = "127.0.0.1";
    int port = 0;       ///< 0: any free port
    std::string token;  ///< what clients must know; empty: no token
    /// The connection of a client that has not sent the token within this time is closed.
    std::chrono::milliseconds hello_time{10'000};
  };

  /// Throws Comm if it cannot listen there, InvalidArgument for an address other than loopback
  /// without a token.
  explicit TcpStoreServer(Options options);
  ~TcpStoreServer();

  int port() const;
  /// The served keys, accessed without a connection.
  std::unique_ptr<Store> store() const;
  /// Returns when no client is connected, or at the deadline.
  void wait_for_clients_to_leave(const Deadline& deadline) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A client. Throws Timeout if no server listens there by the deadline, InvalidArgument if the
/// server refuses the token, or for an address other than loopback without a token. A get() that
/// the server does not answer ends up to 2 s after its deadline.
///
/// After a call that the server has not answered in time (Timeout) the next one makes a new
/// connection. Then it is not known whether the server has done the first request, or will do it
/// later: its set() may come after a newer one, and an add() that is called again may count twice.
class TcpStore final : public Store {
 public:
  /// `owner`: who hosts it, for messages, for example "rank 0".
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
