// The inner loops of the losses.
#pragma once

#include <cstdint>

#include "weft/kernels/cpu/loops/table.h"

namespace weft::cpu {

struct LossLoops {
  /// grad = scale * exp(log_probs) + shift over one row: without the extra term of the target.
  void (*softmax_grad)(std::int64_t classes, const void* log_probs, double scale, double shift,
                       void* grad);
  /// acc += sum (x - t)^2
  void (*squared_error)(std::int64_t n, const void* x, const void* t, double* acc);
  RowFn squared_error_grad;  // grad, x, t; params: double[2] = {2 or 2/n, grad_loss}
};
WEFT_LOOPS(ByDType<LossLoops>, loss_loops)

}  // namespace weft::cpu
