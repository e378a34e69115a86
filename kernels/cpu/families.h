// The CPU's kernels, by family. backend.cc puts them into the kernel table.
#pragma once

#include "weft/kernels/backend.h"
#include "weft/kernels/cpu/simd.h"

namespace weft {

ElementwiseKernels cpu_elementwise_kernels();
ReduceKernels cpu_reduce_kernels();
PoolingKernels cpu_pooling_kernels();
NormKernels cpu_norm_kernels();
IndexingKernels cpu_indexing_kernels();
SoftmaxKernels cpu_softmax_kernels();
LossKernels cpu_loss_kernels();
RandomKernels cpu_random_kernels();
OptimKernels cpu_optim_kernels();

namespace cpu {

/// Element-wise loops for i64, i32, u8 and bool.
const ElementwiseRows& integer_rows(DType dtype);

// The entries of ElementwiseKernels that only move or compare elements (copy.cc).
void compare(const Stream&, CompareOp op, const View& a, const View& b, const View& y);
void where(const Stream&, const View& condition, const View& a, const View& b, const View& y);
void copy(const Stream&, const View& x, const View& y);
void fill(const Stream&, double value, const View& y);
void arange(const Stream&, double start, double step, const View& y);

}  // namespace cpu
}  // namespace weft
