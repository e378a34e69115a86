// 2-D convolution and its transpose, three passes each.
#pragma once

#include <array>
#include <cstdint>

#include "weft/core/runtime.h"
#include "weft/kernels/plan.h"
#include "weft/kernels/view.h"

namespace weft {

/// Pairs are (height, width).
struct Conv2dParams {
  std::array<std::int64_t, 2> stride = {1, 1};
  std::array<std::int64_t, 2> padding = {0, 0};
  std::array<std::int64_t, 2> dilation = {1, 1};
  std::int64_t groups = 1;
  /// Transposed only: adds to one side of the output, already contained in y's shape.
  std::array<std::int64_t, 2> output_padding = {0, 0};
  bool transposed = false;
};

enum class ConvPass : std::uint8_t { forward, backward_data, backward_weights };

/// x [N,C,H,W], y [N,K,Ho,Wo] dense in nchw or nhwc; w dense row-major: [K,C/groups,R,S], and
/// [C,K/groups,R,S] when transposed; bias [K] or empty. One dtype: f32, f64, bf16 (sums in f32).
///   Ho = (H + 2 p - d (R-1) - 1) / s + 1,  transposed: Ho = (H-1) s - 2 p + d (R-1) + op + 1
/// The views mean values in forward and gradients where the pass says so:
///   forward:          x, w, bias -> y
///   backward_data:    y (= dL/dy), w -> x (= dL/dx)
///   backward_weights: x, y (= dL/dy) -> w (= dL/dw), bias (= dL/db, when asked for)
struct Conv2dArgs {
  ConvPass pass = ConvPass::forward;
  Conv2dParams params;
  View x, w, bias, y;
};

class Conv2dPlan : public Plan {
 public:
  /// The layout the pass writes: of y (forward) or of x (backward_data).
  MemoryFormat output_format = MemoryFormat::nchw;
};

struct Conv2dKernels {
  /// Reads shapes, dtypes and strides; those of the output say which layout the caller would like,
  /// and the plan names the one it writes: the CPU's the one asked for. Timed at first use, or
  /// fixed when thread_state().deterministic.
  PlanRef<Conv2dPlan> (*plan)(const Conv2dArgs& args);
  void (*run)(const Stream&, const Conv2dPlan&, const Conv2dArgs& args, void* workspace);
};

}  // namespace weft
