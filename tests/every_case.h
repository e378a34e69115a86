// How many cases a test takes: few in every run, all in a soak.
#pragma once

#include <cstdlib>

namespace weft::testing {

/// Whether to take all cases, also where a part of them covers all code: WEFT_EVERY_CASE is set.
inline bool every_case() { return std::getenv("WEFT_EVERY_CASE") != nullptr; }

}  // namespace weft::testing
