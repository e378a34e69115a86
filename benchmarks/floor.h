// The floor of a step: its heavy kernels one by one, each hot in cache and in its better layout,
// and the optimiser in one pass. No step built from these kernels can be faster.
#pragma once

#include <string>
#include <vector>

namespace weft::bench {

struct FloorRow {
  std::string kernel;
  double ms = 0;
};

/// Median times on the calling thread's team. `work` as for make_work.
std::vector<FloorRow> measure_floor(const std::string& work);

}  // namespace weft::bench
