#include "weft/kernels/backend.h"

namespace weft::cuda {

AttentionKernels attention_kernels() { return {}; }

}  // namespace weft::cuda
