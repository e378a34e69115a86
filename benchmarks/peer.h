// A conversation with another program, one line of JSON for another: benchmarks/peer.py, the
// PyTorch side of the benchmark, or a rank of this one.
#pragma once

#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "weft/benchmarks/temp_folder.h"

namespace weft::bench {

/// Owns the peer's process. Between requests it sleeps in a read, so it does not disturb who is
/// measured meanwhile.
class Peer {
 public:
  /// Starts a program, found as the shell finds it, with its arguments. Throws Error(Io) when it
  /// cannot be started.
  explicit Peer(std::vector<std::string> command);
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  /// Throws Error(Io) when the peer ended, with its exit status.
  nlohmann::json ask(const nlohmann::json& request);
  /// The two halves of it.
  void send(const nlohmann::json& request);
  nlohmann::json receive();

 private:
  int process_ = -1;
  std::FILE* to_ = nullptr;
  std::FILE* from_ = nullptr;
  std::string request_ = {};
};

/// The other end of one: answers each request that stands in a line of stdin by what belongs to
/// its "cmd", until there are no more. What throws answers {"error": WHY}.
void serve(const std::map<std::string, std::function<nlohmann::json(const nlohmann::json&)>>& cmds);

/// Processes that each are one rank of the same run, and a folder for them to meet in.
class PeerRanks {
 public:
  /// Starts `command` so many times.
  PeerRanks(int ranks, const std::vector<std::string>& command);

  /// Asks all of them at once, adding "rank", "ranks" and "folder" to the request. Returns their
  /// answers by rank; throws Library for the first that is an error.
  std::vector<nlohmann::json> ask(const nlohmann::json& request);
  /// The largest of the numbers that all answer by this name: a step is over when all are done.
  double ask_most(const nlohmann::json& request, const std::string& name);

 private:
  TempFolder folder_;
  std::vector<std::unique_ptr<Peer>> ranks_;
};

}  // namespace weft::bench
