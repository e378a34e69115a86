// Tensors by name, in an order.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "weft/tensor/tensor.h"

namespace weft::io {

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

}  // namespace weft::io
