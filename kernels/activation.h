// What a convolution or a matrix product does to each value of its result, in the same pass.
#pragma once

#include <cstdint>

#include "weft/core/base/compiler.h"

namespace weft {

/// relu: the operation of that name, with its bits: a NaN stays, and -0 becomes 0. It rounds
/// nothing, so it may come before or after the rounding to the result's dtype.
enum class Activation : std::uint8_t { none, relu };

}  // namespace weft
