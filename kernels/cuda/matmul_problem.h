// A matrix product in the terms of cuBLAS. It includes no CUDA header, so it is tested without a
// GPU.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "weft/kernels/plan/matmul_problem.h"

namespace weft::cuda {

/// A batch of matrices in cuBLAS's column-major order. Row-major [R,C] with row stride ld is
/// column-major [C,R] with the same ld.
struct Matrix {
  std::int64_t rows = 0, columns = 0;  // as stored, column-major
  std::int64_t ld = 0;
  std::int64_t batch_stride = 0;
  bool transposed = false;  // cuBLAS has to transpose it

  /// The number of elements from the first to the last of the batch, both included.
  std::int64_t extent(std::int64_t batch) const {
    return (batch - 1) * batch_stride + (columns - 1) * ld + rows;
  }
};

/// In column-major order, y [M,N] = a b reads as y^T [N,M] = b^T a^T. So cuBLAS's A is b, and its B
/// is a.
struct CublasProblem : MatmulProblem {
  Matrix a, b, y;
  bool dense_bias;  // the bias is dense, so an epilogue can add it
  bool row_sums;    // an epilogue is to write them
  bool masked;      // an epilogue is to read a mask

  explicit CublasProblem(const MatmulArgs& args);

  /// The key of the plan in the cache: the problem, the device and the flags.
  std::array<std::int64_t, 18> key(int device, std::int64_t rules, bool tf32) const;
  /// The family of a key (ChoiceProblem::family).
  static std::vector<std::int64_t> family(const std::array<std::int64_t, 18>& key);
};

}  // namespace weft::cuda
