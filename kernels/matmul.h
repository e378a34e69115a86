// Batched matrix products.
#pragma once

#include "weft/core/runtime/runtime.h"
#include "weft/kernels/activation.h"
#include "weft/kernels/plan/plan.h"
#include "weft/kernels/view.h"

namespace weft {

/// y = a b (+ bias). a [B,M,K], b [B,K,N], y [B,M,N] dense row-major, bias [N] or empty.
/// In a and b, one of the last two dimensions has stride 1 (or length 1), and the stride of the
/// other is at least a row's length; the batch stride may be 0. One dtype: f32, f64, bf16 (sums in
/// f32); but y may be f32 where a and b are bf16, without a bias. B, M, N > 0. K may be 0; then y
/// is the bias or zero.
struct MatmulArgs {
  View a, b, y, bias;
  bool accumulate = false;             ///< y += a b instead of y = a b; not together with bias
  Activation then = Activation::none;  ///< of all that; plan() does not read it
};

struct MatmulKernels {
  /// Reads shapes, strides and dtypes of args, not the data. Returns the fastest of the candidates,
  /// which are timed at the first use of a shape; with thread_state().deterministic, a fixed one.
  PlanRef<Plan> (*plan)(const MatmulArgs& args);
  void (*run)(const Stream&, const Plan&, const MatmulArgs& args, void* workspace);
};

}  // namespace weft
