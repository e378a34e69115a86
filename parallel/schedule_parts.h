// What the makers of schedules share. Private to parallel/.
#pragma once

#include <vector>

#include "weft/parallel/schedule.h"

namespace weft::parallel {

/// Throws InvalidArgument for a number of devices that no schedule may have.
void check_devices(const char* name, int devices);

/// Empty lists of actions. Throws InvalidArgument for sizes beyond the limits.
Schedule sized(const char* name, int stages, int micro_batches, int devices);

/// Adds B, or another `kind`, after an R if recomputation is wanted.
void add_backward(std::vector<Action>& list, Action::Kind kind, int stage, int micro_batch,
                  int micro_batches, Recompute recompute);

}  // namespace weft::parallel
