// A conversation with benchmarks/peer.py, the PyTorch side of the benchmark.
#pragma once

#include <cstdio>
#include <string>

#include <nlohmann/json.hpp>

namespace weft::bench {

/// Owns the peer's process. Between requests it sleeps in a read, so it does not disturb weft's
/// side.
class Peer {
 public:
  /// Starts `python script`. Throws Error(Io) when it does not answer.
  Peer(const std::string& python, const std::string& script);
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  /// Throws Error(Io) when the peer ended, with its exit status.
  nlohmann::json ask(const nlohmann::json& request);

 private:
  int process_ = -1;
  std::FILE* to_ = nullptr;
  std::FILE* from_ = nullptr;
};

}  // namespace weft::bench
