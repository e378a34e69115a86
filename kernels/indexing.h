// Reading and adding at computed positions.
#pragma once

#include "weft/core/runtime.h"
#include "weft/kernels/view.h"

namespace weft {

/// index is i64. An index outside its dimension is found before the kernel runs (check_bounds).
struct IndexingKernels {
  /// Throws InvalidArgument naming op, the first bad index, its position and `bound`, unless all
  /// are in [0, bound). Waits for the stream on CUDA.
  void (*check_bounds)(const Stream&, const char* op, const View& index, std::int64_t bound);
  /// y = x with dimension dim replaced by index's order; index [k].
  void (*index_select)(const Stream&, const View& x, int dim, const View& index, const View& y);
  /// y[.., index[i], ..] += x[.., i, ..]: the gradient of index_select. Deterministic order.
  void (*index_add)(const Stream&, const View& x, int dim, const View& index, const View& y);
  /// y[i][j][k] = x[i][index[i][j][k]][k] for dim 1; index and y of one shape.
  void (*gather)(const Stream&, const View& x, int dim, const View& index, const View& y);
  /// The gradient of gather: y[i][index[i][j][k]][k] += x[i][j][k].
  void (*scatter_add)(const Stream&, const View& x, int dim, const View& index, const View& y);
  /// y [.., classes] = 1 where the last coordinate equals index [..], else 0.
  void (*one_hot)(const Stream&, const View& index, const View& y);
};

}  // namespace weft
