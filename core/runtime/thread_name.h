// The names and numbers of threads, in traces and for the system.
#pragma once

#include <string>
#include <string_view>

#include "weft/core/base/compiler.h"

namespace weft {

/// Names the calling thread in traces (up to 47 characters) and for the system (the first 15, as
/// Linux allows). Longer names are cut off.
void set_thread_name(std::string_view name);

namespace detail {
/// Small numbers, in the order of the first calls.
int thread_number();
/// The name that was set; else "main", or "thread 3".
std::string thread_name();
/// The thread's spans read its name again (trace.cc, which is above this header).
void thread_renamed();
}  // namespace detail

}  // namespace weft
