// The inner loops of softmax.
#pragma once

#include <cstdint>

#include "weft/kernels/cpu/loops/table.h"

namespace weft::cpu {

/// Rows of n elements; kernels/softmax.h has the formulas.
struct SoftmaxLoops {
  void (*log_softmax)(std::int64_t rows, std::int64_t n, const void* x, void* y);
  void (*softmax)(std::int64_t rows, std::int64_t n, const void* x, void* y);
  void (*log_softmax_grad)(std::int64_t rows, std::int64_t n, const void* grad_y, const void* y,
                           void* grad_x);
  void (*softmax_grad)(std::int64_t rows, std::int64_t n, const void* grad_y, const void* y,
                       void* grad_x);
};
WEFT_LOOPS(ByDType<SoftmaxLoops>, softmax_loops)

}  // namespace weft::cpu
