// Views, recorded on the tape. Those of one result are methods of Tensor. tensor/ops.h has what is
// not said here.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include "weft/tensor/tensor.h"

namespace weft {

std::vector<Tensor> chunk(const Tensor& x, std::int64_t count, std::int64_t dim = 0);
std::vector<Tensor> split(const Tensor& x, std::int64_t size, std::int64_t dim = 0);
std::vector<Tensor> split(const Tensor& x, const Dims& sizes, std::int64_t dim);
/// x[0], x[1], ... along dim, without that dimension. Throws Shape for an x without dimensions.
std::vector<Tensor> unbind(const Tensor& x, std::int64_t dim = 0);
/// For grids of coordinates, as torch.meshgrid: the i-th result is the i-th axis [n] (or a scalar),
/// expanded along dimension i of all lengths. "xy" exchanges the first two dimensions of the
/// results. Throws InvalidArgument for another indexing and without axes, Shape for matrices.
std::vector<Tensor> meshgrid(std::span<const Tensor> axes, std::string_view indexing = "ij");
std::vector<Tensor> meshgrid(std::initializer_list<Tensor> axes, std::string_view indexing = "ij");

}  // namespace weft
