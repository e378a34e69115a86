#include "weft/comm/store/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>

#include "weft/core/base/error.h"

namespace weft::comm {
namespace {

using std::chrono::milliseconds;

constexpr const char* kOp = "socket";
// The kernel takes the smaller of this and net.core.somaxconn.
constexpr int kBacklog = 4096;
// One address that does not answer must not use up the time of the others.
constexpr milliseconds kMostPerAttempt{10'000};
constexpr milliseconds kFirstPause{5}, kLongestPause{200};

std::string reason(int error) {
  // Not std::generic_category(): UBSan checks its virtual call by opening a descriptor, and there
  // may be no free one.
  const char* const text = ::strerrordesc_np(error);
  return (text ? text : "unknown error") + (" (errno " + std::to_string(error) + ")") +
         (error == EMFILE ? "; ulimit -n allows more" : "");
}

std::string place(const std::string& host, int port) {
  return "port " + std::to_string(port) + " of " + host;
}

struct Resolved {
  std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses{nullptr, freeaddrinfo};
  std::string failure;  // why there are no addresses
};

// May ask a name server, for as long as resolv.conf allows.
Resolved resolve(const std::string& host, int port) {
  const addrinfo hints{.ai_flags = AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  // Also if no /etc/hosts defines it (RFC 6761, 6.3).
  if (error != 0 && host == "localhost") return resolve("127.0.0.1", port);
  Resolved result;
  result.addresses.reset(found);
  if (error != 0) result.failure = error == EAI_SYSTEM ? reason(errno) : gai_strerror(error);
  return result;
}

Socket open_socket(const addrinfo& address) {
  return Socket(
      ::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, address.ai_protocol));
}

// Small messages are sent at once. A socket that refuses the option still works.
void set_no_delay(const Socket& socket) {
  const int on = 1;
  ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// Whether one of `events` came before the deadline.
bool wait_for(const Socket& socket, short events, const Deadline& deadline) {
  for (;;) {
    pollfd poll{socket.fd(), events, 0};
    const int n = ::poll(&poll, 1, static_cast<int>(deadline.left().count()));
    if (n > 0) return true;
    WEFT_CHECK(n == 0 || errno == EINTR, Comm, kOp, "cannot wait for a socket: ", reason(errno));
    if (deadline.passed()) return false;
  }
}

// A connection to a free port of this machine may connect the socket to itself: both ends have that
// port, and no server can listen there any more.
bool connected_to_itself(const Socket& socket) {
  sockaddr_storage here{}, there{};
  socklen_t here_size = sizeof here, there_size = sizeof there;
  return ::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&here), &here_size) == 0 &&
         ::getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&there), &there_size) == 0 &&
         here_size == there_size &&
         std::equal(reinterpret_cast<const char*>(&here),
                    reinterpret_cast<const char*>(&here) + here_size,
                    reinterpret_cast<const char*>(&there));
}

// Returns 0, or the error.
int try_connect(const Socket& socket, const addrinfo& address, const Deadline& deadline) {
  if (::connect(socket.fd(), address.ai_addr, address.ai_addrlen) < 0) {
    if (errno != EINPROGRESS && errno != EINTR) return errno;
    if (!wait_for(socket, POLLOUT, deadline.at_most(kMostPerAttempt))) return ETIMEDOUT;
  }
  int error = 0;
  socklen_t size = sizeof error;
  if (::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size) < 0) return errno;
  if (error == 0 && connected_to_itself(socket)) return ECONNREFUSED;
  return error;
}

bool is_loopback(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return (ntohl(v4.sin_addr.s_addr) >> 24) == 127;
  }
  return address.sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

// Moves all `size` bytes with `step(offset)`, which is send or recv; `done` says in errors what was
// done with them.
template <class Step>
void transfer(const Socket& socket, std::size_t size, short events, const Deadline& deadline,
              const std::string& who, const char* done, const Step& step) {
  for (std::size_t at = 0; at < size;) {
    const ssize_t n = step(at);
    if (n > 0) {
      at += static_cast<std::size_t>(n);
      continue;
    }
    const int error = errno;
    if (n < 0 && error == EINTR) continue;
    const bool gone = n == 0 || error == EPIPE || error == ECONNRESET || error == ETIMEDOUT;
    WEFT_CHECK(!gone, PeerFailed, kOp, who, " closed its connection (it has ", done, " ", at,
               " of ", size, " bytes)");
    WEFT_CHECK(error == EAGAIN || error == EWOULDBLOCK, PeerFailed, kOp, "the connection to ", who,
               " has failed: ", reason(error));
    WEFT_CHECK(wait_for(socket, events, deadline), Timeout, kOp, who, " has ", done, " ", at,
               " of ", size, " bytes");
  }
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

void Socket::shut_down() const noexcept { ::shutdown(fd_, SHUT_RDWR); }

Socket listen_on(const std::string& host, int port) {
  WEFT_CHECK(port >= 0 && port <= 65535, InvalidArgument, kOp, "port ", port,
             " is none: 0 (a free one) to 65535");
  const Resolved resolved = resolve(host, port);
  WEFT_CHECK(resolved.addresses, Comm, kOp, "cannot listen on ", place(host, port), ": ",
             resolved.failure);
  int error = 0;
  for (const addrinfo* address = resolved.addresses.get(); address; address = address->ai_next) {
    Socket socket = open_socket(*address);
    // A port whose last owner has just ended may be used again; a port in use may not.
    const int on = 1;
    if (socket.valid() &&
        ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        ::bind(socket.fd(), address->ai_addr, address->ai_addrlen) == 0 &&
        ::listen(socket.fd(), kBacklog) == 0) {
      return socket;
    }
    // Of several addresses (::1, 127.0.0.1), report the one in use: the user can do something about
    // it.
    if (error != EADDRINUSE) error = errno;
  }
  const char* remedy = error == EADDRINUSE
                           ? "; another run may be there: end it, or give another port"
                       : error == EADDRNOTAVAIL ? "; that is no address of this machine"
                                                : "";
  WEFT_THROW(Comm, kOp, "cannot listen on ", place(host, port), ": ", reason(error), remedy);
}

int port_of(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  const int result = ::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &size);
  WEFT_CHECK(result == 0, Comm, kOp, "cannot tell a socket's port: ", reason(errno));
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

Socket connect_to(const std::string& host, int port, const Deadline& deadline, bool is_listening) {
  WEFT_CHECK(port >= 1 && port <= 65535, InvalidArgument, kOp, "port ", port,
             " is none: 1 to 65535");
  std::string failure;
  for (milliseconds pause = kFirstPause;; pause = std::min(pause * 2, kLongestPause)) {
    const Resolved resolved = resolve(host, port);
    failure = resolved.failure;
    bool refused = is_listening && resolved.addresses;
    for (const addrinfo* address = resolved.addresses.get(); address; address = address->ai_next) {
      Socket socket = open_socket(*address);
      const int error = socket.valid() ? try_connect(socket, *address, deadline) : errno;
      WEFT_CHECK(error != EMFILE, Comm, kOp, "cannot make a socket to connect to ",
                 place(host, port), ": ", reason(error));
      if (error == 0) {
        set_no_delay(socket);
        return socket;
      }
      failure = reason(error);
      refused = refused && error == ECONNREFUSED;
    }
    WEFT_CHECK(!refused, PeerFailed, kOp, "nobody listens any more on ", place(host, port),
               ", or it cannot be reached from here");
    WEFT_CHECK(!deadline.passed(), Timeout, kOp, "nobody to connect to on ", place(host, port),
               " within the time: ", failure);
    // There is no notification when a server begins to listen.
    std::this_thread::sleep_for(deadline.left(pause));
  }
}

std::optional<Socket> accept_from(const Socket& listening, const Deadline& deadline) {
  while (wait_for(listening, POLLIN, deadline)) {
    Socket socket(::accept4(listening.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.valid()) {
      set_no_delay(socket);
      return socket;
    }
    // The connection may have ended meanwhile, or another thread may have accepted it.
    const bool again = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ||
                       errno == ECONNABORTED || errno == EPROTO;
    WEFT_CHECK(again, Comm, kOp, "cannot accept a connection: ", reason(errno));
    if (deadline.passed()) break;
  }
  return std::nullopt;
}

std::string tcp_url(const std::string& host, int port) {
  const bool v6 = host.find(':') != std::string::npos;
  return "tcp://" + (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

bool is_loopback(const std::string& host) {
  const Resolved resolved = resolve(host, 0);
  const addrinfo* address = resolved.addresses.get();
  if (!address) return false;
  for (; address; address = address->ai_next) {
    if (!is_loopback(*address->ai_addr)) return false;
  }
  return true;
}

void send_all(const Socket& socket, std::span<const std::byte> bytes, const Deadline& deadline,
              const std::string& who) {
  transfer(socket, bytes.size(), POLLOUT, deadline, who, "taken", [&](std::size_t at) {
    return ::send(socket.fd(), bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
  });
}

void recv_all(const Socket& socket, std::span<std::byte> bytes, const Deadline& deadline,
              const std::string& who) {
  transfer(socket, bytes.size(), POLLIN, deadline, who, "sent", [&](std::size_t at) {
    return ::recv(socket.fd(), bytes.data() + at, bytes.size() - at, 0);
  });
}

}  // namespace weft::comm
