// How delays on purpose (phase.h) get into traces, whose code is above this part.
#pragma once

#include <atomic>
#include <chrono>

namespace weft::detail {

/// Called by a thread when a fault has delayed it, with the time that it slept.
using DelayObserver = void (*)(std::chrono::nanoseconds slept);
/// Set when the first tracer is made; null before.
inline constinit std::atomic<DelayObserver> delay_observer = nullptr;

}  // namespace weft::detail
