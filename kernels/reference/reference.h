// The definition of every kernel: plain loops over the elements, one file a family, that compute
// what the contract in kernels/<family>.h says, in f64. What to read first, and what the kernels of
// the backends are tested against. On the host, in the calling thread.
#pragma once

#include "weft/kernels/backend.h"

namespace weft::reference {

ElementwiseKernels elementwise_kernels();
ReduceKernels reduce_kernels();
MatmulKernels matmul_kernels();
Conv2dKernels conv2d_kernels();
PoolingKernels pooling_kernels();
NormKernels norm_kernels();
IndexingKernels indexing_kernels();
SoftmaxKernels softmax_kernels();
LossKernels loss_kernels();
RandomKernels random_kernels();
OptimKernels optim_kernels();

}  // namespace weft::reference
