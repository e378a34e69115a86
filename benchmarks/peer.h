// Communication with another program, one line of JSON each way: benchmarks/peer.py, the PyTorch
// side of the benchmark, or a rank of this one.
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

/// Owns the peer's process. Between requests it sleeps in a read, so it does not disturb
/// measurements of others.
class Peer {
 public:
  /// Starts a program with its arguments; the program is searched for as by a shell. Throws
  /// Error(Io) if it cannot be started.
  explicit Peer(std::vector<std::string> command);
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  /// Sends a request, returns the answer. Throws Error(Io) with the exit status if the peer ended.
  nlohmann::json ask(const nlohmann::json& request);
  /// The two halves of ask().
  void send(const nlohmann::json& request);
  nlohmann::json receive();

 private:
  int process_ = -1;
  std::FILE* to_ = nullptr;
  std::FILE* from_ = nullptr;
  std::string request_ = {};
};

/// peer.ask(request). Throws Library if the answer is an error: what the peer cannot do.
nlohmann::json ask(Peer& peer, const nlohmann::json& request);

/// The other end: answers each request, a line of stdin, with the function for its "cmd", until
/// stdin ends. After an exception the answer is {"error": WHY}.
void serve(const std::map<std::string, std::function<nlohmann::json(const nlohmann::json&)>>& cmds);

/// Processes that are the ranks of one run, and a folder in which they meet.
class PeerRanks {
 public:
  /// Starts `command` once per rank.
  PeerRanks(int ranks, const std::vector<std::string>& command);

  /// Asks all ranks at the same time, adding "rank", "ranks" and "folder" to the request. Returns
  /// their answers by rank; throws Library for the first error.
  std::vector<nlohmann::json> ask(const nlohmann::json& request);
  /// The largest number that any rank answers by this name: a step ends when all ranks are done.
  double ask_most(const nlohmann::json& request, const std::string& name);

 private:
  TempFolder folder_;
  std::vector<std::unique_ptr<Peer>> ranks_;
};

}  // namespace weft::bench
