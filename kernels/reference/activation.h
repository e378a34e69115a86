// Activations that follow a convolution or a matrix product.
#pragma once

#include "weft/kernels/activation.h"
#include "weft/kernels/functors.h"

namespace weft::reference {

inline double activated(Activation then, double value) {
  return then == Activation::relu ? functor::Relu{}.fwd(value) : value;
}

}  // namespace weft::reference
