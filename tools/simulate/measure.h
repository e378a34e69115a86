// What a program's layers and this machine's links cost.
#pragma once

#include <cstdint>

#include "weft/tools/simulate/cost_model.h"
#include "weft/tools/simulate/programs.h"

namespace weft::simulator {

struct MeasureOptions {
  /// Virtual CPU devices of one core each: they must be there (set_host_devices), and the calling
  /// thread must compute with one core.
  int devices = 2;
  double seconds = 60;  ///< about; at least a few passes of everything are taken
};

/// Everything is measured in turn, in rounds, so that a noisy moment meets all of it; of the times
/// of each thing the median counts. A layer takes its share, as timed one by one, of the
/// time of the model in one piece. Throws InvalidArgument for fewer than 1 device.
Costs measure(const Program& program, const MeasureOptions& options = {});

}  // namespace weft::simulator
