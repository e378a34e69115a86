// Reading and adding at positions given by an index tensor.
#pragma once

#include "weft/core/runtime/index_reports.h"
#include "weft/core/runtime/runtime.h"
#include "weft/kernels/view.h"

namespace weft {

/// count_true counts in pieces of this length.
inline constexpr std::int64_t kTruePiece = 4096;

inline std::int64_t true_pieces(std::int64_t n) { return n / kTruePiece + (n % kTruePiece != 0); }

/// index is i64. All kernels except check_bounds expect it to be in range: the caller calls
/// check_bounds first, or knows the range. On CUDA they run before the answer is known: there an
/// index out of range reads NaN, or 0 for other dtypes, and writes nothing.
struct IndexingKernels {
  /// Throws InvalidArgument unless `bounds` accepts all indices. The message names op, the first
  /// bad index, its position and the bound. On CUDA, later: from the thread's next call that waits
  /// for a device, with the module path of now (core/runtime/index_reports.h). Recorded work checks
  /// at each replay.
  void (*check_bounds)(const Stream&, const IndexBounds& bounds, const View& index);
  /// y[.., i, ..] = x[.., index[i], ..] with i in dimension dim; index [k].
  void (*index_select)(const Stream&, const View& x, int dim, const View& index, const View& y);
  /// The bytes of index_add's workspace for this call, which is null for none.
  std::size_t (*index_add_workspace_bytes)(const Stream&, const View& x, int dim, const View& y);
  /// y[.., index[i], ..] += x[.., i, ..]: the gradient of index_select. Terms of one element are
  /// added one by one in the order of i, and each sum is rounded, so every backend gives the same
  /// bits.
  void (*index_add)(const Stream&, const View& x, int dim, const View& index, const View& y,
                    void* workspace);
  /// With dim 1: y[i][j][k] = x[i][index[i][j][k]][k]. index and y have one shape.
  void (*gather)(const Stream&, const View& x, int dim, const View& index, const View& y);
  /// The bytes of the workspace of scatter_add and scatter for this call, which is null for none.
  std::size_t (*scatter_workspace_bytes)(const Stream&, const View& x, int dim, const View& y);
  /// The gradient of gather. With dim 1: y[i][index[i][j][k]][k] += x[i][j][k], rounded as
  /// index_add does, in the order of j.
  void (*scatter_add)(const Stream&, const View& x, int dim, const View& index, const View& y,
                      void* workspace);
  /// With dim 1: y[i][index[i][j][k]][k] = x[i][j][k]. Of equal indices the last one (the largest
  /// j) wins.
  void (*scatter)(const Stream&, const View& x, int dim, const View& index, const View& y,
                  void* workspace);
  /// counts[p] = the number of true elements in piece p of a dense boolean mask [n]; counts is i64
  /// [true_pieces(n)], n positive.
  void (*count_true)(const Stream&, const View& mask, const View& counts);
  /// y = the positions of the true elements, ascending, i64. ends: the running sums of counts.
  void (*find_true)(const Stream&, const View& mask, const View& ends, const View& y);
  /// y [.., classes] = 1 where the last coordinate equals index [..], else 0.
  void (*one_hot)(const Stream&, const View& index, const View& y);
};

}  // namespace weft
