// The interface to NCCL for the rest of comm/. comm/nccl/, which calls the library, is only in
// builds with CUDA.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "weft/comm/backend/backend.h"
#include "weft/comm/store/store.h"
#include "weft/core/runtime/runtime.h"

namespace weft::comm {

/// Works on memory of one CUDA device. Calls return when their work is queued on a stream; check()
/// finds out whether it failed there.
class DeviceBackend : public Backend {
 public:
  using Backend::Backend;
  /// Throws the errors that have happened since, as the calls do.
  virtual void check() = 0;
};

struct Nccl {
  /// Why it cannot be used here; empty: it can.
  std::string (*missing)();
  /// 22809 is 2.28.9.
  int (*version)();
  /// The GPU's own number, the same in every process.
  std::string (*gpu)(int device);
  /// For rank `rank` of `size`, which find each other by keys in `store` that are used only once.
  /// Works on `stream`. Made, used and destroyed by one thread, except abort(). While a call of it
  /// waits, also the making, it calls `check` again and again, which may throw.
  std::unique_ptr<DeviceBackend> (*make)(Store& store, int rank, int size, const Stream& stream,
                                         const Deadline& deadline,
                                         const std::function<void()>& check);
};

/// Set once, before the first use.
void register_nccl(const Nccl* nccl);
/// Null where neither this program nor libweft_cuda.so has it.
const Nccl* registered_nccl();

/// Throws Unsupported where there is no NCCL that can be used.
void check_nccl();

}  // namespace weft::comm

/// comm/nccl/'s.
extern "C" const weft::comm::Nccl weft_cuda_nccl;
