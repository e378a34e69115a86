// Strangers: connections to the ports of a run from outside the run, as from a port scan.
#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "weft/comm/store/socket.h"
#include "weft/tests/io/files.h"

namespace weft::testing {

/// The addresses at which TCP over IPv4 listens in this process's network namespace, by the
/// socket's inode.
inline std::map<std::string, sockaddr_in> listening_sockets() {
  std::map<std::string, sockaddr_in> found;
  std::istringstream lines(read_file("/proc/self/net/tcp"));
  for (std::string line; std::getline(lines, line);) {
    unsigned address = 0, port = 0, state = 0;
    std::array<char, 32> inode{};
    if (std::sscanf(line.c_str(), "%*s %8X:%4X %*s %2X %*s %*s %*s %*s %*s %31s", &address, &port,
                    &state, inode.data()) != 4 ||
        state != 0x0A) {
      continue;
    }
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(static_cast<std::uint16_t>(port));
    at.sin_addr.s_addr = address;  // already in network byte order
    found[inode.data()] = at;
  }
  return found;
}

/// The addresses at which these processes listen.
inline std::vector<sockaddr_in> listening_sockets(const std::vector<pid_t>& processes) {
  const std::map<std::string, sockaddr_in> all = listening_sockets();
  std::map<std::string, sockaddr_in> theirs;
  for (const pid_t pid : processes) {
    std::error_code gone;
    for (std::filesystem::directory_iterator fd("/proc/" + std::to_string(pid) + "/fd", gone), end;
         !gone && fd != end; fd.increment(gone)) {
      std::error_code closed;
      const std::string target = std::filesystem::read_symlink(fd->path(), closed);
      if (!target.starts_with("socket:[")) continue;
      const auto socket = all.find(target.substr(8, target.size() - 9));
      if (socket != all.end()) theirs.insert(*socket);
    }
  }
  std::vector<sockaddr_in> list;
  for (const auto& [inode, address] : theirs) list.push_back(address);
  return list;
}

/// Strangers that send nothing, or not all, stay connected as long as this object lives.
class Strangers {
 public:
  /// Connects once, as one of four kinds in turn. Returns whether anything listened there.
  bool visit(const sockaddr_in& at) {
    comm::Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    ::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&at), sizeof at);
    pollfd connected{socket.fd(), POLLOUT, 0};
    if (::poll(&connected, 1, 1000) != 1 || (connected.revents & POLLERR)) return false;
    const std::string noise(100, '\xa5');
    switch (visits_++ % 8) {
      case 0: hold(std::move(socket)); return true;
      case 2: ::send(socket.fd(), noise.data(), 3, MSG_NOSIGNAL); break;
      case 4: ::send(socket.fd(), noise.data(), noise.size(), MSG_NOSIGNAL); break;
      case 6:
        ::send(socket.fd(), noise.data(), 3, MSG_NOSIGNAL);
        hold(std::move(socket));
        return true;
    }
    const linger reset{1, 0};
    ::setsockopt(socket.fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    return true;
  }
  int visits() const { return visits_; }

 private:
  void hold(comm::Socket socket) {
    if (held_.size() < 200) held_.push_back(std::move(socket));
  }

  int visits_ = 0;
  std::vector<comm::Socket> held_;
};

}  // namespace weft::testing
