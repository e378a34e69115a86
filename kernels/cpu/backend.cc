#include "weft/kernels/backend.h"

#include "weft/kernels/cpu/runtime.h"

namespace weft {

const Backend* cpu_backend() {
#define X(Table, name) .name = cpu::name##_kernels(),
  static const Backend backend{.runtime = &cpu_runtime(), .kernels = {WEFT_FAMILIES(X)}};
#undef X
  return &backend;
}

}  // namespace weft
