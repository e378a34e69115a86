// Reductions over any set of dimensions.
#pragma once

#include <cstdint>

#include "weft/core/runtime.h"
#include "weft/kernels/view.h"

namespace weft {

enum class ReduceOp : std::uint8_t { sum, mean, prod, max, min, all, any };
enum class ArgReduceOp : std::uint8_t { argmax, argmin };

struct ReduceKernels {
  std::size_t (*workspace_bytes)(ReduceOp, const View& x, const View& y);
  /// y has x's number of dimensions; those of length 1 in y and not in x are reduced. Sums are kept
  /// in accumulate_t of x's dtype, in an order fixed by the shapes and the team size; f32 and bf16
  /// pairwise or better, so that the error grows as log n. y: x's dtype; i64 for integer sum, mean
  /// (not offered) and prod; boolean for all, any. max, min of nothing never reach here.
  void (*reduce)(const Stream&, ReduceOp, const View& x, const View& y, void* workspace);
  /// y [.., 1 at dim, ..] i64: the first position of the extreme; a NaN counts as the extreme.
  void (*arg_reduce)(const Stream&, ArgReduceOp, const View& x, int dim, const View& y);
};

}  // namespace weft
