// 2-D convolution and transposed convolution, with three passes each.
#pragma once

#include <array>
#include <cstdint>

#include "weft/core/runtime/runtime.h"
#include "weft/kernels/activation.h"
#include "weft/kernels/plan/plan.h"
#include "weft/kernels/view.h"

namespace weft {

/// Pairs are (height, width), as torch.nn.functional.conv2d's; none is above kMaxPixels.
struct Conv2dParams {
  std::array<std::int64_t, 2> stride = {1, 1};
  std::array<std::int64_t, 2> padding = {0, 0};
  std::array<std::int64_t, 2> dilation = {1, 1};
  std::int64_t groups = 1;
  /// Transposed only: rows and columns added to one side of the output. y's shape includes them.
  std::array<std::int64_t, 2> output_padding = {0, 0};
  bool transposed = false;
};

enum class ConvPass : std::uint8_t { forward, backward_data, backward_weights };

/// x [N,C,H,W], y [N,K,Ho,Wo], w [K,C/groups,R,S] ([C,K/groups,R,S] when transposed), each dense in
/// nchw or nhwc; bias [K] or empty. One dtype: f32, f64, bf16. The definition, kernels/reference,
/// sums in f64; the others may sum in f32 unless the dtype is f64, and do, but for CUDA's sums for
/// the bias. On the CPU the format of w changes no bit; on CUDA another one may mean another
/// algorithm.
///   Ho = (H + 2 p - d (R-1) - 1) / s + 1,  transposed: Ho = (H-1) s - 2 p + d (R-1) + op + 1
/// Each pass reads the views left of the arrow and writes those right of it. Some hold gradients:
///   forward:          x, w, bias -> y
///   backward_data:    y (= dL/dy), w -> x (= dL/dx)
///   backward_weights: x, y (= dL/dy) -> w (= dL/dw), bias (= dL/db, when asked for)
struct Conv2dArgs {
  ConvPass pass = ConvPass::forward;
  Conv2dParams params;
  View x, w, bias, y;
  Activation then = Activation::none;  ///< of y; forward alone. plan() does not read it.
};

class Conv2dPlan : public Plan {
 public:
  /// The wanted layout of the image that the pass writes: y (forward) or x (backward_data).
  MemoryFormat output_format = MemoryFormat::nchw;
};

/// The gradient before a relu, and the bias's: sums of it. All dense in nchw or nhwc, one dtype:
///   before = grad_y where y > 0 or y is NaN, else 0;  bias = sum of before over n, h, w
struct ReluBackwardArgs {
  View grad_y, y;  ///< [N,K,H,W]
  View before;     ///< [N,K,H,W] in y's format; may be grad_y if that is in it, too
  View bias;       ///< [K]
};

struct Conv2dKernels {
  /// Reads shapes, dtypes and strides of args, not the data. The strides of the output say which
  /// layout the caller would like; plan->output_format says which one run() writes. On the CPU
  /// these are the same. At the first use of a shape the candidates are timed and the fastest is
  /// kept; with thread_state().deterministic, a fixed one is used.
  PlanRef<Conv2dPlan> (*plan)(const Conv2dArgs& args);
  void (*run)(const Stream&, const Conv2dPlan&, const Conv2dArgs& args, void* workspace);
  /// One pass over memory. Null, both, where two passes are as fast. The sums run in f64.
  std::size_t (*relu_backward_workspace_bytes)(const ReluBackwardArgs&) = nullptr;
  void (*relu_backward)(const Stream&, const ReluBackwardArgs&, void* workspace) = nullptr;
};

}  // namespace weft
