#include "weft/comm/backend/nccl.h"

#include <atomic>

#include "weft/core/base/error.h"
#include "weft/kernels/cuda_library.h"

namespace weft::comm {
namespace {

constinit std::atomic<const Nccl*> registered{nullptr};

}  // namespace

void register_nccl(const Nccl* nccl) { registered = nccl; }

const Nccl* registered_nccl() {
  if (const Nccl* const nccl = registered) return nccl;
  return static_cast<const Nccl*>(cuda_library_symbol("weft_cuda_nccl"));
}

void check_nccl() {
  const Nccl* const nccl = registered_nccl();
  WEFT_CHECK(nccl, Unsupported, "nccl",
             "this build of weft has no NCCL; the other backends carry CUDA tensors through the "
             "host's memory");
  const std::string missing = nccl->missing();
  WEFT_CHECK(missing.empty(), Unsupported, "nccl", missing);
}

}  // namespace weft::comm
