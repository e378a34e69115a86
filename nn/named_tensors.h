// Tensors by name, as state_dict() lists them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "weft/tensor/tensor.h"

namespace weft::nn {

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

}  // namespace weft::nn
