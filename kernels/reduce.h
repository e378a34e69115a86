// Reductions over any set of dimensions.
#pragma once

#include <cstdint>

#include "weft/core/runtime/runtime.h"
#include "weft/kernels/view.h"

namespace weft {

enum class ReduceOp : std::uint8_t { sum, mean, prod, max, min, all, any };
enum class ArgReduceOp : std::uint8_t { argmax, argmin };

/// workspace: as many bytes as the function beside it says for this call, null for none.
struct ReduceKernels {
  std::size_t (*workspace_bytes)(ReduceOp, const View& x, const View& y);
  /// y has as many dimensions as x; dimensions of length 1 in y but not in x are reduced. Results
  /// are accumulated in f64 for floating dtypes, else in i64. Sums of f32 and bf16 may be in f32
  /// for some 20 terms, on CUDA compensated for 32, if they do not leave its range. The order of a
  /// sum depends on shapes and strides, on the CPU also on the instruction set, but never on the
  /// number of threads. y's dtype: x's; i64 for sum and prod of integers; boolean for all and any.
  /// mean of integers throws Unsupported. The caller must exclude max and min of no elements.
  void (*reduce)(const Stream&, ReduceOp, const View& x, const View& y, void* workspace);
  std::size_t (*moments_workspace_bytes)(const View& x, const View& squares);
  /// For the n elements x of each result: mean = sum x / n, squares = sum (x - mean)^2. Without a
  /// mean (an empty view): squares = sum x^2. x is floating; mean and squares are f64, with the
  /// shape of y in `reduce` and equal strides. The sums run in f64 over x - shift in the order of
  /// `reduce`, where shift is 0 or one of the n values (kernels/norm.h says what this is good for).
  void (*moments)(const Stream&, const View& x, const View& mean, const View& squares,
                  void* workspace);
  /// y = (x - center) factor, computed in f64 and rounded to y's dtype, which is x's. All views
  /// have x's shape; center, which may be empty (0), and factor are f64.
  void (*scaled_deviation)(const Stream&, const View& x, const View& center, const View& factor,
                           const View& y);
  /// y [.., 1 at dim, ..] i64: the first position of the extreme. A NaN counts as the extreme.
  void (*arg_reduce)(const Stream&, ArgReduceOp, const View& x, int dim, const View& y,
                     void* workspace);
  std::size_t (*arg_workspace_bytes)(const View& x, const View& y);
};

}  // namespace weft
