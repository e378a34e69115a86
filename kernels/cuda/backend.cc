#include "weft/kernels/backend.h"

#include "weft/kernels/cuda/families.h"
#include "weft/kernels/cuda/runtime.h"

namespace weft::cuda {

const Backend& own_backend() {
  static const Backend* const made = [] {
    auto* const backend = new Backend;  // alive while statics are destroyed
    backend->runtime = &cuda_runtime();
    backend->kernels = {.elementwise = {.unary = unary,
                                        .unary_backward = unary_backward,
                                        .binary = binary,
                                        .binary_backward = binary_backward,
                                        .compare = compare,
                                        .where = where,
                                        .copy = copy,
                                        .fill = fill,
                                        .add_scaled = add_scaled,
                                        .arange = arange},
                        .reduce = {.workspace_bytes = reduce_workspace_bytes,
                                   .reduce = reduce,
                                   .moments_workspace_bytes = moments_workspace_bytes,
                                   .moments = moments,
                                   .scaled_deviation = scaled_deviation,
                                   .arg_reduce = arg_reduce},
                        .matmul = matmul_kernels(),
                        .conv2d = conv2d_kernels(),
                        .pooling = pooling_kernels(),
                        .norm = norm_kernels(),
                        .indexing = indexing_kernels(),
                        .softmax = softmax_kernels(),
                        .loss = loss_kernels(),
                        .random = random_kernels(),
                        .optim = optim_kernels()};
    return backend;
  }();
  return *made;
}

}  // namespace weft::cuda
