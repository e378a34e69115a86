// The two-layer perceptron that classifies 28x28 images.
#pragma once

#include "weft/weft.h"

namespace weft::examples {

/// x [N,1,28,28] -> logits [N,10]
inline nn::Sequential mlp() {
  return {nn::Flatten(), nn::Linear(784, 128), nn::ReLU(), nn::Linear(128, 10)};
}

}  // namespace weft::examples
