// The inner loops of pooling.
#pragma once

#include <cstdint>

#include "weft/kernels/cpu/loops/table.h"

namespace weft::cpu {

/// One position of the windows of a max pooling, for n neighbouring windows i. If x[i * step] is
/// larger than best[i] or NaN, or if winner[i] is still -1, then best[i] becomes x[i * step] and
/// winner[i] becomes position + i * position_step.
using PoolStep = void (*)(std::int64_t n, const void* x, std::int64_t step, std::int32_t position,
                          std::int32_t position_step, void* best, std::int32_t* winner);

/// sum[i] += scale x[i * step], i < n.
using AddScaledStep = void (*)(std::int64_t n, const void* x, std::int64_t step, double scale,
                               double* sum);

struct PoolingLoops {
  PoolStep max_step;
  AddScaledStep add_scaled_step;  // for average pooling
};
WEFT_LOOPS(ByDType<PoolingLoops>, pooling_loops)

}  // namespace weft::cpu
