// The inner loop of normal random numbers.
#pragma once

#include <cstdint>

#include "weft/kernels/cpu/loops/table.h"

namespace weft::cpu {

struct RandomLoops {
  /// weft::box_muller
  void (*box_muller)(float* x, std::int64_t n, float mean, float std);
};
WEFT_LOOPS(RandomLoops, random_loops)

}  // namespace weft::cpu
