// The lower bound of a step: its heavy kernels one by one, each with its data in the cache and in
// its better layout, and the optimiser in one pass. No step built from these kernels can be faster.
#pragma once

#include <string>
#include <vector>

namespace weft::bench {

struct FloorRow {
  std::string kernel;
  double ms = 0;
};

/// Median times on the calling thread's team. `work` is a name as for find_work(); nothing for one
/// whose kernels are not listed here: the transformer, and those for a GPU.
std::vector<FloorRow> measure_floor(const std::string& work);

}  // namespace weft::bench
