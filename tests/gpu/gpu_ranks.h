// Ranks that are threads of the test, each with a GPU.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "weft/comm/process_group.h"
#include "weft/core/runtime.h"
#include "weft/tests/comm/ranks.h"

namespace weft::testing {

inline Device gpu_of(int rank) { return {DeviceType::cuda, rank % device_count(DeviceType::cuda)}; }

/// f as n ranks that talk by this backend.
inline void in_groups(const std::string& backend, int n,
                      const std::function<void(comm::ProcessGroup&)>& f) {
  const bool nccl = backend == "nccl";
  // Threads may not share GPUs, nor their default streams.
  if (nccl && 2 * n > device_count(DeviceType::cuda)) return;
  const comm::ProcessGroupOptions options{.cuda = nccl ? comm::CudaTransport::nccl
                                                       : comm::CudaTransport::staging};
  comm::run_ranks(
      n,
      [&](comm::ProcessGroup& threads) {
        if (nccl || backend == "threads") return f(threads);
        comm::ProcessGroup group(comm::testing::maker_of(backend),
                                 std::make_shared<comm::PrefixStore>(backend, threads.store()),
                                 threads.rank(), n, options);
        f(group);
      },
      options);
}

}  // namespace weft::testing
