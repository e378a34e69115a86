#include "weft/kernels/backend.h"

#include "weft/core/base/simd_level.h"

namespace weft {
namespace {

const Backend& host_backend() {
  static const Backend chosen{cpu_backend()->runtime, reference_kernels_wanted()
                                                          ? reference_kernels()
                                                          : cpu_backend()->kernels};
  return chosen;
}

}  // namespace

const Backend& backend(Device device) {
  runtime(device);  // throws if the device does not exist
  return device.is_cpu() ? host_backend() : *cuda_backend();
}

void throw_unsupported(const char* op, Device device, DType dtype) {
  WEFT_THROW(Unsupported, op, "not available for ", to_string(dtype), " on ", device);
}

}  // namespace weft
