#include "weft/kernels/backend.h"

#include "weft/kernels/cuda/families.h"
#include "weft/kernels/cuda/runtime.h"

namespace weft {

const Backend* cuda_backend() {
  static const Backend* const made = [] {
    auto* const backend = new Backend;  // alive while statics are destroyed
    backend->runtime = &cuda::cuda_runtime();
    backend->kernels = {.elementwise = {.unary = cuda::unary,
                                        .unary_backward = cuda::unary_backward,
                                        .binary = cuda::binary,
                                        .binary_backward = cuda::binary_backward,
                                        .compare = cuda::compare,
                                        .where = cuda::where,
                                        .copy = cuda::copy,
                                        .fill = cuda::fill,
                                        .add_scaled = cuda::add_scaled,
                                        .arange = cuda::arange},
                        .reduce = {.workspace_bytes = cuda::reduce_workspace_bytes,
                                   .reduce = cuda::reduce,
                                   .arg_reduce = cuda::arg_reduce},
                        .matmul = cuda::matmul_kernels(),
                        .conv2d = cuda::conv2d_kernels(),
                        .pooling = cuda::pooling_kernels(),
                        .norm = cuda::norm_kernels(),
                        .indexing = cuda::indexing_kernels(),
                        .softmax = cuda::softmax_kernels(),
                        .loss = cuda::loss_kernels(),
                        .random = cuda::random_kernels(),
                        .optim = cuda::optim_kernels()};
    return backend;
  }();
  return made;
}

namespace {
// Asks no driver: that happens when somebody counts the devices.
const bool registered = (register_runtime(DeviceType::cuda, &cuda::cuda_runtime()), true);
}  // namespace

}  // namespace weft
