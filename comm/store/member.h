// Member: a rank of a run, with the data that distinguishes its process from all others.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft::comm {

struct Member {
  int rank = 0;
  std::string host;     ///< its name, for messages
  std::string boot;     ///< the kernel's boot id
  std::string pids;     ///< the PID namespace
  std::string network;  ///< the network namespace
  std::int64_t pid = 0, start = 0;
  std::string address;     ///< on which its data sockets listen
  std::string invocation;  ///< of the rendezvous: differs between two calls in one process

  bool operator==(const Member&) const = default;
};

/// This process.
Member this_member(int rank, std::string address);

/// One line per field, and back; throws Comm for any other text.
std::string to_text(const Member& member);
Member parse_member(std::string_view text);

/// "pid 4711 on node3"
std::string describe(const Member& member);

/// "rank 2", "ranks 2, 3"; for many ranks the first ones and how many there are.
std::string list_of(const std::vector<int>& ranks);

bool same_process(const Member& a, const Member& b);
/// Whether they can reach each other on loopback.
bool same_network(const Member& a, const Member& b);
/// Whether `member` is known to have ended: there is no such process here, or its host has been
/// booted since. False for other hosts, other PID namespaces and other users' processes: nothing is
/// known about these.
bool has_ended(const Member& member);

/// When process `pid` began, in clock ticks since the boot; nothing if there is no such process, or
/// only a zombie.
std::optional<std::int64_t> process_start(std::int64_t pid);

}  // namespace weft::comm
