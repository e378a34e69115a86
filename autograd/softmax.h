// Softmax over one dimension, recorded on the tape. tensor/ops.h has what is not said here.
#pragma once

#include <cstdint>

#include "weft/tensor/tensor.h"

namespace weft {

Tensor softmax(const Tensor& x, std::int64_t dim);
Tensor log_softmax(const Tensor& x, std::int64_t dim);

}  // namespace weft
