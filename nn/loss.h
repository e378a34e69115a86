// Losses under the name a reader of PyTorch programs looks for (autograd/ops.h documents them).
#pragma once

#include "weft/autograd/ops.h"

namespace weft::nn {

using weft::cross_entropy;
using weft::mse_loss;

}  // namespace weft::nn
