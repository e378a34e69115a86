// Measures the costs of a program's layers and of this machine's links.
#pragma once

#include <cstdint>

#include "weft/tools/simulate/cost_model.h"
#include "weft/tools/simulate/programs.h"

namespace weft::simulator {

struct MeasureOptions {
  /// Virtual CPU devices of one core each. They must exist (set_host_devices), and the calling
  /// thread must compute with one core.
  int devices = 2;
  double seconds = 60;  ///< approximate; everything is measured at least a few times
};

/// Measures everything in turn, in rounds, so that a noisy moment affects all of it, and takes
/// medians. The time of a layer is its share of the time of the whole model, by the times of single
/// layers. Throws InvalidArgument for fewer than 1 device.
Costs measure(const Program& program, const MeasureOptions& options = {});

/// The costs that need no clock: sizes of layers, and the memory of steps with the program's
/// numbers of rows.
Costs sizes_of(const Program& program, int devices);

}  // namespace weft::simulator
