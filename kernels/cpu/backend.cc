#include "weft/kernels/backend.h"

#include "weft/kernels/cpu/families.h"
#include "weft/kernels/cpu/heavy.h"
#include "weft/kernels/cpu/runtime.h"

namespace weft {

const Backend* cpu_backend() {
  static const Backend backend{
      .runtime = &cpu_runtime(),
      .kernels = {.elementwise = cpu_elementwise_kernels(),
                  .reduce = cpu_reduce_kernels(),
                  .matmul = cpu_matmul_kernels(),
                  .conv2d = cpu_conv2d_kernels(),
                  .pooling = cpu_pooling_kernels(),
                  .norm = cpu_norm_kernels(),
                  .indexing = cpu_indexing_kernels(),
                  .softmax = cpu_softmax_kernels(),
                  .loss = cpu_loss_kernels(),
                  .random = cpu_random_kernels(),
                  .optim = cpu_optim_kernels()},
  };
  return &backend;
}

}  // namespace weft
