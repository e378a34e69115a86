// The texts in a safetensors file besides its tensors.
#pragma once

#include <map>
#include <string>

#include "weft/core/base/compiler.h"

namespace weft::io {

using Metadata = std::map<std::string, std::string>;

}  // namespace weft::io
