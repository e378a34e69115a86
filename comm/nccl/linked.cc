// For programs that the CUDA backend is linked into.
#include "weft/comm/nccl.h"

namespace {
const bool registered = (weft::comm::register_nccl(&weft_cuda_nccl), true);
}  // namespace
