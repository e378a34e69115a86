// The lower bound of a step: its heavy kernels one by one, each with its data in the cache and in
// its better layout, and the optimiser in one pass. No step built from these kernels can be faster.
#pragma once

#include <string>
#include <vector>

namespace weft::bench {

/// Milliseconds of a kernel that finds its data in the cache, and of one that finds nothing there:
/// in a step, what other kernels read and wrote before has displaced a part of it.
struct FloorTimes {
  double warm = 0, cold = 0;
};

struct FloorRow {
  std::string kernel;
  FloorTimes ms;
};

/// Median times on the calling thread's team. `work` is a name as for find_work(); nothing for one
/// whose kernels are not listed here: the transformer, and those for a GPU.
std::vector<FloorRow> measure_floor(const std::string& work);

}  // namespace weft::bench
