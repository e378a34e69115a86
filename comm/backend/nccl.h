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
  /// Throws the errors that have happened since, like the calls.
  virtual void check() = 0;
};

struct Nccl {
  /// Why NCCL cannot be used here; empty: it can.
  std::string (*missing)();
  /// 22809 means 2.28.9.
  int (*version)();
  /// The GPU's own number, the same in every process.
  std::string (*gpu)(int device);
  /// Makes the backend of rank `rank` of `size` on `stream`; the ranks find each other by keys in
  /// `store` that are used only once. One thread makes, uses and destroys it; only abort() may come
  /// from another. While the making or a call waits, it calls `check` again and again, which may
  /// throw.
  std::unique_ptr<DeviceBackend> (*make)(Store& store, int rank, int size, const Stream& stream,
                                         const Deadline& deadline,
                                         const std::function<void()>& check);
};

/// Set once, before the first use.
void register_nccl(const Nccl* nccl);
/// Null if neither this program nor libweft_cuda.so has it.
const Nccl* registered_nccl();

/// Throws Unsupported if there is no NCCL that can be used.
void check_nccl();

}  // namespace weft::comm

/// Defined by comm/nccl/.
extern "C" const weft::comm::Nccl weft_cuda_nccl;
