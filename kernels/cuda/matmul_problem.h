// A product in the terms of cuBLAS. No CUDA header: tested without a GPU.
#pragma once

#include <array>
#include <cstdint>

#include "weft/kernels/matmul.h"

namespace weft::cuda {

/// A batch of matrices in cuBLAS's column-major order. Row-major [R,C] with row stride ld is
/// column-major [C,R] with the same ld.
struct Matrix {
  std::int64_t rows = 0, columns = 0;  // as stored, column-major
  std::int64_t ld = 0;
  std::int64_t batch_stride = 0;
  bool transposed = false;  // whether cuBLAS has to transpose it

  /// Elements from the first to the last of the batch.
  std::int64_t extent(std::int64_t batch) const {
    return (batch - 1) * batch_stride + (columns - 1) * ld + rows;
  }
};

/// y [M,N] = a b is, read column-major, y^T [N,M] = b^T a^T: cuBLAS's A is b and its B is a.
struct MatmulProblem {
  DType dtype = DType::f32;
  std::int64_t batch = 0, m = 0, n = 0, k = 0;
  Matrix a, b, y;
  bool bias = false;
  bool dense_bias = false;  // what an epilogue can add
  bool accumulate = false;

  explicit MatmulProblem(const MatmulArgs& args);

  /// What a plan is found by: all of the above, where it runs, and the flags it was made under.
  std::array<std::int64_t, 17> key(int device, bool deterministic, bool tf32) const;
};

}  // namespace weft::cuda
