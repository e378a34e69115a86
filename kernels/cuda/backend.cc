#include "weft/kernels/backend.h"

#include "weft/kernels/cuda/families.h"
#include "weft/kernels/cuda/runtime.h"

namespace weft::cuda {

const Backend& own_backend() {
  // Never destroyed, for static objects.
#define X(Table, name) .name = name##_kernels(),
  static const auto* const made =
      new Backend{.runtime = &cuda_runtime(), .kernels = {WEFT_FAMILIES(X)}};
#undef X
  return *made;
}

}  // namespace weft::cuda
