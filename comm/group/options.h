// The options of a group of ranks.
#pragma once

#include <chrono>
#include <vector>

#include "weft/core/base/compiler.h"

namespace weft::comm {

/// How tensors on CUDA devices are sent; tensors on the host always use the group's backend.
enum class CudaTransport {
  automatic,  ///< NCCL if all ranks have it and each has a GPU of its own, else staging
  staging,    ///< the backend, on copies in page-locked memory of the host
  nccl,       ///< NCCL, also for ranks (of several processes) that share a GPU, or Unsupported
  nccl_ring,  ///< weft's own collectives over ncclSend and ncclRecv, likewise
};

/// Whether a group without NCCL is an error.
constexpr bool demands_nccl(CudaTransport transport) {
  return transport == CudaTransport::nccl || transport == CudaTransport::nccl_ring;
}

/// The ranks of a group in a run that can lose and regain ranks (comm/membership.h).
struct Generation {
  int number = 0;
  std::vector<int> ranks = {};  ///< their numbers in the run, increasing; empty: 0 to size - 1
};

struct ProcessGroupOptions {
  /// The time limit of each operation, from its own beginning: earlier operations do not count.
  /// While a rank of the run is busy (core/runtime/phase.h: BusyScope) the time begins anew, up to
  /// 10 times this in all.
  std::chrono::milliseconds timeout{120'000};
  /// A rank that waits longer than this logs, once per operation, for which ranks it waits.
  std::chrono::milliseconds slow{10'000};
  /// Compare operation, dtype, count and tag of all ranks before any data moves, in an exchange of
  /// its own; also switched on by WEFT_DISTRIBUTED_DEBUG=1. Without it what is sent between CPUs is
  /// compared on the way, and what NCCL sends is not.
  bool check_fingerprints = false;
  /// Must be the same on all ranks. In one operation either all ranks' tensors are on CUDA devices
  /// or none. All ranks plan for NCCL in the group's first collective on CUDA tensors, and again
  /// when they come to one with GPUs that were in none before, which all ranks must do together.
  /// Messages go as that first collective does, whatever GPUs their two tensors are on: by NCCL
  /// through the memory of the GPU that the rank had in it, or through the host's memory. In a
  /// group of two ranks a message before it plans for all messages, on GPUs of its own. In a larger
  /// one messages before that collective go through the host's memory with `automatic`; with nccl
  /// and nccl_ring it must come first: a message with only two of the ranks would wait for the
  /// others.
  CudaTransport cuda = CudaTransport::automatic;
};

}  // namespace weft::comm
