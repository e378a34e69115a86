// Pooling, recorded on the tape. tensor/ops.h has what is not said here. Also takes an image
// without a batch, x [C,H,W], and gives one.
#pragma once

#include <array>
#include <cstdint>

#include "weft/kernels/pooling.h"
#include "weft/tensor/tensor.h"

namespace weft {

Tensor max_pool2d(const Tensor& x, const Pool2dParams& params);
/// As max_pool2d, and i64 indices, h W + w of each maximum in its image. As torch's
/// max_pool2d_with_indices, or max_pool2d with return_indices.
ValuesAndIndices max_pool2d_with_indices(const Tensor& x, const Pool2dParams& params);
Tensor adaptive_max_pool2d(const Tensor& x, const std::array<std::int64_t, 2>& size);
/// The same for adaptive_max_pool2d.
ValuesAndIndices adaptive_max_pool2d_with_indices(const Tensor& x,
                                                  const std::array<std::int64_t, 2>& size);
Tensor avg_pool2d(const Tensor& x, const AvgPool2dParams& params);
Tensor adaptive_avg_pool2d(const Tensor& x, const std::array<std::int64_t, 2>& size);

}  // namespace weft
