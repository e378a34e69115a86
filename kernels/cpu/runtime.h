// Host memory and copies; the CPU has no queues, so streams and events are empty names.
#pragma once

#include "weft/core/runtime.h"

namespace weft {

/// Registered before main() in every program that links it.
Runtime& cpu_runtime();

}  // namespace weft
