// The version of weft; tools/install reads it from here.
#pragma once

#include "weft/core/base/compiler.h"

namespace weft {

inline constexpr const char* kVersion = "0.2.0";

}  // namespace weft
