#include "weft/kernels/backend.h"

namespace weft {

const Backend& backend(Device device) {
  runtime(device);  // throws unless the device exists
  return device.is_cpu() ? *cpu_backend() : *cuda_backend();
}

void throw_unsupported(const char* op, Device device, DType dtype) {
  WEFT_THROW(Unsupported, op, "not available for ", to_string(dtype), " on ", device);
}

}  // namespace weft
