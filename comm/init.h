// init_process_group: from an environment or an address to a group.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "weft/comm/environment.h"
#include "weft/comm/group/process_group.h"

namespace weft::comm {

struct InitOptions {
  /// "env://"                what the launcher's environment says: weftrun's and torchrun's names,
  ///                         else Open MPI's, MPICH's (PMI), Slurm's, Horovod's; without any of
  ///                         these a world of one
  /// "tcp://host:port"       rank 0 hosts the store there
  /// a file that all ranks can open
  /// rank and world_size come from below, or after a ?: "tcp://host:port?rank=0&world_size=2"
  std::string init_method = "env://";
  std::optional<int> rank = {};
  std::optional<int> world_size = {};
  /// "gloo", "ring", "shm", or "auto": shm if all ranks are on one host, else ring. CUDA tensors
  /// use the same backend through the host's memory, but with "auto" NCCL where possible. "nccl" is
  /// "auto" that always uses NCCL for CUDA tensors, "nccl-ring" one that does so for messages only:
  /// weft's own collectives run over them, bit for bit as those of "ring" (but for NaN's bits).
  std::string backend = "auto";
  /// A user's own backend in place of those, also for CUDA tensors. All ranks give one, or none
  /// does; it is not called in a world of one.
  BackendMaker make_backend = {};
  /// The address on which data sockets and a hosted store listen; a token is needed on any but
  /// loopback. Empty: WEFT_LOCAL_ADDR of the environment, which weftrun --local-addr sets, else
  /// 127.0.0.1.
  std::string local_addr = {};
  /// The secret that every client of a TCP store must know; by default WEFT_STORE_TOKEN of the
  /// environment. The variable is not removed: other threads may be reading the environment.
  std::optional<std::string> token = {};
  ProcessGroupOptions group = {};
  /// The time for the meeting of the ranks, and for calls of the group's store.
  std::chrono::milliseconds rendezvous_timeout{300'000};
  // If the variable WEFT_TIMEOUT is set, its seconds replace both timeouts.
};

/// Meets the other ranks and makes the group of all ranks. Sets thread_state().rank. Throws
/// InvalidArgument for impossible options, Timeout naming the ranks that did not come, Unsupported
/// for a backend that this build does not have.
std::shared_ptr<ProcessGroup> init_process_group(const InitOptions& options = {});

}  // namespace weft::comm
