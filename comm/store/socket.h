// TCP sockets with deadlines. No call raises SIGPIPE, and no descriptor survives an exec.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "weft/comm/store/deadline.h"

namespace weft::comm {

/// Owns a non-blocking descriptor, or is empty.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();

  bool valid() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  /// Wakes all threads that wait on it, in this process and at the other end; it stays open.
  void shut_down() const noexcept;

 private:
  int fd_ = -1;
};

/// Listens on `port` of `host` (a name or an address); port 0 means a free one. Throws Comm naming
/// both, and for a port in use also what the user can do.
Socket listen_on(const std::string& host, int port);
/// The port a socket is bound to.
int port_of(const Socket& socket);
/// Tries until somebody listens there; Timeout with the last reason if the deadline passes.
/// `is_listening`: somebody is known to have listened, so PeerFailed if nobody does now. Sets
/// TCP_NODELAY.
Socket connect_to(const std::string& host, int port, const Deadline& deadline,
                  bool is_listening = false);
/// The next connection; nothing if the deadline passed.
std::optional<Socket> accept_from(const Socket& listening, const Deadline& deadline);
/// "tcp://127.0.0.1:29500"; an IPv6 address gets brackets: "tcp://[::1]:29500"
std::string tcp_url(const std::string& host, int port);
/// Whether `host` can only be reached from this machine: 127.0.0.0/8, ::1, or a name of these.
bool is_loopback(const std::string& host);

/// Moves all bytes, or throws PeerFailed or Timeout; `who` names the other end: "rank 2".
void send_all(const Socket& socket, std::span<const std::byte> bytes, const Deadline& deadline,
              const std::string& who);
void recv_all(const Socket& socket, std::span<std::byte> bytes, const Deadline& deadline,
              const std::string& who);

}  // namespace weft::comm
