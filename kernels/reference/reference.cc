#include "weft/kernels/reference/reference.h"

namespace weft {

const KernelTable& reference_kernels() {
  using namespace reference;
  static const KernelTable table{.elementwise = elementwise_kernels(),
                                 .reduce = reduce_kernels(),
                                 .matmul = matmul_kernels(),
                                 .conv2d = conv2d_kernels(),
                                 .pooling = pooling_kernels(),
                                 .norm = norm_kernels(),
                                 .indexing = indexing_kernels(),
                                 .softmax = softmax_kernels(),
                                 .loss = loss_kernels(),
                                 .random = random_kernels(),
                                 .optim = optim_kernels()};
  return table;
}

}  // namespace weft
