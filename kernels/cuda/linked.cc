// Registers the CUDA backend in programs into which it is linked.
#include "weft/kernels/cuda/families.h"
#include "weft/kernels/cuda_library.h"

namespace weft {

const Backend* cuda_backend() { return &cuda::own_backend(); }

void* cuda_library_symbol(const char*) { return nullptr; }

namespace {

// Registers as early as the CPU backend (kernels/cpu/runtime.cc). Does not call the driver: that
// happens when the devices are counted.
[[gnu::constructor(101)]] void register_cuda() {
  register_runtime_finder(DeviceType::cuda,
                          [](std::string&) { return cuda::own_backend().runtime; });
}

}  // namespace

}  // namespace weft
