// Ranks that are threads of the test, each with its own GPU.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "weft/comm/backend/nccl.h"
#include "weft/comm/group/process_group.h"
#include "weft/core/runtime/runtime.h"
#include "weft/tests/comm/ranks.h"

namespace weft::testing {

inline Device gpu_of(int rank) { return {DeviceType::cuda, rank % device_count(DeviceType::cuda)}; }

/// Runs f as n ranks with this backend; skips the test without a GPU, and if NCCL cannot run them.
inline void in_groups(const std::string& backend, int n,
                      const std::function<void(comm::ProcessGroup&)>& f,
                      comm::ProcessGroupOptions options = {}) {
  const bool own_ring = backend == "nccl-ring", nccl = own_ring || backend == "nccl";
  if (device_count(DeviceType::cuda) == 0) GTEST_SKIP() << "needs a GPU";
  if (nccl && !comm::registered_nccl()) GTEST_SKIP() << "this build is without NCCL";
  // Threads may share neither GPUs nor default streams.
  if (nccl && 2 * n > device_count(DeviceType::cuda)) GTEST_SKIP() << "needs " << 2 * n << " GPUs";
  options.cuda = own_ring ? comm::CudaTransport::nccl_ring
                 : nccl   ? comm::CudaTransport::nccl
                          : comm::CudaTransport::staging;
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
