// For programs that the CUDA backend is linked into.
#include "weft/comm/backend/nccl.h"

namespace {

// As early as the CPU's backend (kernels/cpu/runtime.cc).
[[gnu::constructor(101)]] void register_it() { weft::comm::register_nccl(&weft_cuda_nccl); }

}  // namespace
