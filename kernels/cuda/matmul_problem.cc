#include "weft/kernels/cuda/matmul_problem.h"

#include "weft/kernels/plan/choices.h"

namespace weft::cuda {
namespace {

/// A view [B,R,C], read in column-major order, which transposes it.
Matrix column_major(const View& view) {
  const std::int64_t rows = view.shape[1], columns = view.shape[2];
  const std::int64_t row_stride = view.strides[1], column_stride = view.strides[2];
  Matrix m;
  m.batch_stride = view.strides[0];
  // The strides of a dimension of length 1 have no meaning, but cuBLAS requires an ld of at least a
  // row.
  const bool row_major =
      (column_stride == 1 || columns == 1) && (row_stride >= columns || rows == 1);
  if (row_major) {
    m.rows = columns;
    m.columns = rows;
    m.ld = rows == 1 ? columns : row_stride;
  } else {
    m.rows = rows;
    m.columns = columns;
    m.ld = columns == 1 ? rows : column_stride;
    m.transposed = true;
  }
  return m;
}

}  // namespace

CublasProblem::CublasProblem(const MatmulArgs& args)
    : MatmulProblem(args),
      a(column_major(args.a)),
      b(column_major(args.b)),
      y{n, m, n, m * n, false},
      dense_bias(bias && (n == 1 || args.bias.strides[0] == 1)),
      row_sums(!args.row_sums.shape.empty()),
      masked(!bias && !args.mask.shape.empty()) {}

std::array<std::int64_t, 18> CublasProblem::key(int device, std::int64_t rules, bool tf32) const {
  return {static_cast<std::int64_t>(dtype),
          static_cast<std::int64_t>(y_dtype),
          batch,
          m,
          n,
          k,
          a.ld,
          a.batch_stride,
          a.transposed,
          b.ld,
          b.batch_stride,
          b.transposed,
          std::int64_t{bias} | std::int64_t{row_sums} << 1 | std::int64_t{masked} << 2,
          dense_bias,
          accumulate,
          device,
          rules,
          tf32};
}

std::vector<std::int64_t> CublasProblem::family(const std::array<std::int64_t, 18>& key) {
  std::vector<std::int64_t> words(key.begin(), key.end());
  // The numbers of batch, m, n, k, and of leading dimensions and strides of the matrices.
  for (const int i : {2, 3, 4, 5, 6, 7, 9, 10})
    words[std::size_t(i)] = size_class(words[std::size_t(i)]);
  return words;
}

}  // namespace weft::cuda
