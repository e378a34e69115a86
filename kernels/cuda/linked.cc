// For programs that the CUDA backend is linked into: it is theirs from the start.
#include "weft/kernels/cuda/families.h"
#include "weft/kernels/cuda_library.h"

namespace weft {

const Backend* cuda_backend() { return &cuda::own_backend(); }

void* cuda_library_symbol(const char*) { return nullptr; }

namespace {

// As early as the CPU's (kernels/cpu/runtime.cc). Asks no driver: that happens when somebody counts
// the devices.
[[gnu::constructor(101)]] void register_cuda() {
  register_runtime_finder(DeviceType::cuda,
                          [](std::string&) { return cuda::own_backend().runtime; });
}

}  // namespace

}  // namespace weft
