// The environment variables that weftrun sets for each rank.
#pragma once

#include <string>
#include <vector>

#include "weft/launch/options.h"

namespace weft::launch {

/// For one attempt: the ranks on this node, and the place where all ranks meet.
struct Place {
  int first_rank = 0, world_size = 1;
  bool joins = false;           ///< the other nodes have begun without this one
  std::string store_host = {};  ///< of the ranks' store, which a weftrun hosts
  int store_port = 0;
  std::string token = {};
  int master_port = 0;  ///< free, for programs that host their own store
};

/// The environment of this process, and in it:
///   RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE (nodes),
///   ROLE_RANK, ROLE_WORLD_SIZE, ROLE_NAME, MASTER_ADDR, MASTER_PORT,
///   TORCHELASTIC_RESTART_COUNT, _MAX_RESTARTS, _RUN_ID       as torchrun sets them, but that
///                                nobody listens at MASTER_PORT: rank 0 of a program that uses
///                                torch.distributed does
///   OMP_NUM_THREADS              the cores divided by the ranks of the node, at least 1, unless it
///                                is set; torchrun sets 1
///   PYTHONUNBUFFERED             1 unless it is set: lines are shown when they are printed
///   WEFT_STORE, WEFT_STORE_TOKEN host:port of the ranks' store, and what it asks of its clients
///   WEFT_ERROR_FILE              see ProgramError
///   WEFT_STATUS_FD               see StatusPage
///   WEFT_ELASTIC                 with --min-nproc and --nnodes MIN:MAX: how often this rank was
///                                started before, and 1 more on a node that joins
/// `starts`: how often it was started by this weftrun.
std::vector<std::string> rank_environment(const Options& options, const Place& place,
                                          int local_rank, int attempt,
                                          const std::string& error_file, int status_fd,
                                          int starts = 0);

}  // namespace weft::launch
