// Running sums and products, recorded on the tape. tensor/ops.h has what is not said here.
#pragma once

#include <cstdint>

#include "weft/tensor/ops.h"

namespace weft {

Tensor cumsum(const Tensor& x, std::int64_t dim);
/// The gradient is right where x is 0, too, as in PyTorch.
Tensor cumprod(const Tensor& x, std::int64_t dim);

}  // namespace weft
