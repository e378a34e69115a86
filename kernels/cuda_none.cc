// Stands in for kernels/cuda in a build without it.
#include "weft/kernels/backend.h"

namespace weft {

const Backend* cuda_backend() { return nullptr; }

}  // namespace weft
