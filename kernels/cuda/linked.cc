// For programs that the CUDA backend is linked into: it is theirs from the start.
#include "weft/kernels/cuda/families.h"
#include "weft/kernels/cuda_library.h"

namespace weft {

const Backend* cuda_backend() { return &cuda::own_backend(); }

void* cuda_library_symbol(const char*) { return nullptr; }

namespace {
// Asks no driver: that happens when somebody counts the devices.
const bool registered = (register_runtime(DeviceType::cuda, cuda::own_backend().runtime), true);
}  // namespace

}  // namespace weft
