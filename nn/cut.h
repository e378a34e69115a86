// Cut: which part of a parameter each rank has.
#pragma once

#include <cstdint>
#include <memory>

#include "weft/tensor/tensor.h"

namespace weft::nn {

/// How n ranks share a parameter, or a part of it that another cut has made. Dimension `dim`
/// consists of `blocks` equal blocks. In each block rank r has the ceil(rows / n) rows after those
/// of ranks 0 to r - 1; the last ranks may have fewer, or none.
struct Cut {
  Shape whole;  ///< of the parameter
  int dim = 0;  ///< -1: it is not cut, each rank has all of it
  std::int64_t blocks = 1;
  int rank = 0, size = 1;              ///< this rank, and n
  std::shared_ptr<const Cut> of = {};  ///< the other cut; `whole` is the shape of its part

  struct Rows {
    std::int64_t first = 0, count = 0;
  };
  /// The rows of a rank within each block.
  Rows rows_of(int rank) const;
  /// The shape of the parameter before any cut.
  const Shape& parameter_shape() const { return of ? of->parameter_shape() : whole; }
  /// The shape of this rank's part.
  Shape part_shape() const;
  /// This rank's part of a tensor of the parameter's shape; a view of it if there is one block.
  Tensor part_of(const Tensor& x) const;
};

}  // namespace weft::nn
