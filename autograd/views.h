// Views, recorded on the tape. Those of one result are methods of Tensor. tensor/ops.h has what is
// not said here.
#pragma once

#include <cstdint>
#include <vector>

#include "weft/tensor/tensor.h"

namespace weft {

std::vector<Tensor> chunk(const Tensor& x, std::int64_t count, std::int64_t dim = 0);
std::vector<Tensor> split(const Tensor& x, std::int64_t size, std::int64_t dim = 0);
std::vector<Tensor> split(const Tensor& x, const Dims& sizes, std::int64_t dim);

}  // namespace weft
