// Matrix products, batched.
#pragma once

#include "weft/core/runtime.h"
#include "weft/kernels/plan.h"
#include "weft/kernels/view.h"

namespace weft {

/// y = a b (+ bias). a [B,M,K], b [B,K,N], y [B,M,N] dense row-major, bias [N] or empty.
/// a and b: any strides with one of the last two equal to 1 (or that dimension of length 1) and the
/// other at least as long as a row; the batch stride may be 0. One dtype: f32, f64, bf16 (sums in
/// f32). M, N, B > 0; K may be 0 (y is then bias or zero).
struct MatmulArgs {
  View a, b, y, bias;
  bool accumulate = false;  ///< y += instead of y =; not together with bias
};

struct MatmulKernels {
  /// Reads shapes, strides and dtypes of args, not the data. The fastest of the candidates, timed
  /// at first use, or a fixed one when thread_state().deterministic.
  PlanRef<Plan> (*plan)(const MatmulArgs& args);
  void (*run)(const Stream&, const Plan&, const MatmulArgs& args, void* workspace);
};

}  // namespace weft
