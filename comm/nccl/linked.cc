// For programs that the CUDA backend is linked into.
#include "weft/comm/backend/nccl.h"

namespace {

// Registers as early as the CPU backend (kernels/cpu/runtime.cc).
[[gnu::constructor(101)]] void register_it() { weft::comm::register_nccl(&weft_cuda_nccl); }

}  // namespace
