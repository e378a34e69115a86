// Host memory and copies. The CPU has no queues, so its streams and events do nothing.
#pragma once

#include "weft/core/runtime/runtime.h"

namespace weft {

/// The runtime of the CPU. Every program that links it registers it before main().
Runtime& cpu_runtime();

}  // namespace weft
