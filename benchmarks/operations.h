// Where the time of a step goes, according to the library's own spans.
#pragma once

#include <string>
#include <vector>

#include "weft/benchmarks/work.h"
#include "weft/core/trace/trace.h"

namespace weft::bench {

/// One kind of operation of a step.
struct OperationRow {
  std::string name;  ///< "conv2d", "conv2d backward"; "between operations": outside all spans
  double calls = 0;  ///< per step
  double ms = 0;     ///< per step, without the operations it calls
};

/// The mean over `steps` steps, the longest first. Each span itself takes about 0.1 us.
std::vector<OperationRow> measure_operations(Work& work, int steps);

/// Milliseconds in which the traced thread chose kernels by timing them.
double choosing_ms(const Tracer& tracer);

}  // namespace weft::bench
