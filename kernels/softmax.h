// Softmax and log-softmax over rows.
#pragma once

#include <cstdint>

#include "weft/core/runtime/runtime.h"
#include "weft/kernels/view.h"

namespace weft {

enum class SoftmaxOp : std::uint8_t { softmax, log_softmax };

/// All views are [rows, n], dense and row-major, of one floating dtype; rows and n are positive.
/// The sum of a row is f64; on CUDA, where x is not f64, f32 for runs of 32 terms and across
/// threads. No output may share memory with an input.
struct SoftmaxKernels {
  /// y = exp(x - max) / sum exp(x - max), or the logarithm: y = x - max - log(sum exp(x - max)).
  void (*forward)(const Stream&, SoftmaxOp, const View& x, const View& y);
  /// softmax: grad_x = y (grad_y - sum grad_y y). log_softmax: grad_x = grad_y - exp(y) sum grad_y.
  void (*backward)(const Stream&, SoftmaxOp, const View& grad_y, const View& y, const View& grad_x);
};

}  // namespace weft
