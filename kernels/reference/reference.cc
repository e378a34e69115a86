// The definition of every kernel: plain loops over the elements, one file a family, that compute
// what the contract in kernels/<family>.h says, in f64. What to read first, and what the kernels of
// the backends are tested against. On the host, in the calling thread.
#include "weft/kernels/backend.h"

namespace weft {

const KernelTable& reference_kernels() {
#define X(Table, name) .name = reference::name##_kernels(),
  static const KernelTable table{WEFT_FAMILIES(X)};
#undef X
  return table;
}

}  // namespace weft
