// No allocation may be larger than this in a program that links it.
#pragma once

#include <cstdint>

namespace weft::testing {

/// For a single heap allocation; and for all of a device's memory, if the program sets that limit.
/// So a test does not use up the machine's.
inline constexpr std::int64_t kMostBytes = std::int64_t{256} << 20;

}  // namespace weft::testing
