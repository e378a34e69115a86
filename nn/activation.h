// Activations as layers, for Sequential.
#pragma once

#include "weft/nn/module.h"

namespace weft::nn {

/// max(x, 0), any shape.
class ReLU : public Module<ReLU> {
 public:
  Tensor forward(Tensor x) { return relu(std::move(x)); }
};

/// 1 / (1 + exp(-x)), any shape.
class Sigmoid : public Module<Sigmoid> {
 public:
  Tensor forward(const Tensor& x) { return sigmoid(x); }
};

}  // namespace weft::nn
