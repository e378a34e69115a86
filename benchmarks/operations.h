// Where the time of a step goes, by the library's own spans.
#pragma once

#include <string>
#include <vector>

#include "weft/benchmarks/work.h"

namespace weft::bench {

/// One kind of operation of a step.
struct OperationRow {
  std::string name;  ///< "conv2d", "conv2d backward"; "between operations" is what no span covers
  double calls = 0;  ///< per step
  double ms = 0;     ///< per step, without the operations it calls
};

/// The mean over `steps` steps, the longest first. The spans themselves take some 0.1 us each.
std::vector<OperationRow> measure_operations(Work& work, int steps);

}  // namespace weft::bench
