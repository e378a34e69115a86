// weftrun's command line: torchrun's options, and Horovod's where torchrun has others.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace weft::launch {

enum class StandardStream { out, err };

/// A choice of the standard streams of each rank.
struct StreamChoice {
  int all = 0;               ///< 0: none, 1: stdout, 2: stderr, 3: both
  std::map<int, int> ranks;  ///< per local rank, used instead of `all`

  bool has(int local_rank, StandardStream stream) const;
};

struct Options {
  std::vector<std::string> command;  ///< the program and its arguments
  int nproc = 1;                     ///< ranks on this node
  int nnodes = 1;
  int min_nnodes = 0;  ///< the others go on while so many nodes' ranks are left; 0: never
  int node_rank = 0;
  /// With several nodes, where they meet: node 0 listens there.
  std::string endpoint_host = {};
  int endpoint_port = 0;
  std::string token_file = {};  ///< the secret for the nodes' stores, with several nodes
  std::string master_addr = "127.0.0.1";
  /// The address of this node for the other nodes' ranks; empty: ranks listen on loopback.
  std::string local_addr = {};
  int master_port = 0;  ///< for the ranks' programs; 0: a free one
  std::string run_id = "none", role = "default";
  int max_restarts = 0;
  int min_nproc = 0;  ///< the others go on without a failed rank while so many are left; 0: never
  std::chrono::milliseconds grace{3000};  ///< from a failure or a signal to SIGTERM
  bool no_python = false;
  std::string log_dir = {};
  StreamChoice redirects = {}, tee = {};
  std::set<int> local_ranks_filter = {};  ///< empty: all
  std::string report = {};
  std::string failure = {};                           ///< empty: nowhere
  std::map<std::string, std::string> variables = {};  ///< added to the ranks' environment

  /// How many ranks have to be left when some fail, for the others to go on; 0: all.
  int least_ranks() const { return min_nnodes > 0 ? min_nnodes * nproc : min_nproc; }
};

/// Reads the command line, and the variable PET_NAME for each option NAME that is not given.
/// Returns an exit status if the program should end now: 0 after --help, 2 after printing to stderr
/// what is wrong and, for an unknown option, the nearest known one.
std::optional<int> parse_options(int argc, const char* const* argv, Options& options);

}  // namespace weft::launch
