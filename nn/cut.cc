#include "weft/nn/cut.h"

#include <algorithm>
#include <vector>

#include "weft/tensor/ops.h"

namespace weft::nn {

Cut::Rows Cut::rows_of(int of) const {
  const std::int64_t all = whole[dim] / blocks, most = all / size + (all % size != 0);
  const std::int64_t first = std::min(of * most, all);
  return {first, std::min(most, all - first)};
}

Shape Cut::part_shape() const {
  Shape shape = whole;
  if (dim >= 0) shape[dim] = blocks * rows_of(rank).count;
  return shape;
}

Tensor Cut::part_of(const Tensor& parameter) const {
  const Tensor x = of ? of->part_of(parameter) : parameter;
  if (dim < 0) return x;
  const auto [first, count] = rows_of(rank);
  if (blocks == 1) return raw::narrow(x, dim, first, count);
  std::vector<Tensor> parts;
  for (std::int64_t b = 0; b < blocks; ++b) {
    parts.push_back(raw::narrow(x, dim, b * (whole[dim] / blocks) + first, count));
  }
  return raw::cat(parts, dim);
}

}  // namespace weft::nn
