// What a layer does to its result in the same pass over memory. The values are those of the
// separate calls:
//   conv(x, nn::then_relu())                   relu(conv(x)); also ConvTranspose2d and Linear
//   bn(conv(x), nn::then_relu())               relu(bn(conv(x)))
//   bn(conv(x), nn::then_leaky_relu(0.2))      leaky_relu(bn(conv(x)), 0.2)
//   bn(conv(x), nn::then_add_relu(identity))   relu(bn(conv(x)) + identity)
#pragma once

#include <utility>

#include "weft/autograd/norm.h"
#include "weft/kernels/activation.h"

namespace weft::nn {

/// A relu as each layer, and each function, takes it: linear(x, w, b, nn::then_relu()).
struct ThenRelu {
  operator Activation() const { return Activation::relu; }
  operator BatchNormEpilogue() const { return {.add = {}, .negative_slope = 0}; }
};
inline ThenRelu then_relu() { return {}; }
/// For batch norm.
inline BatchNormEpilogue then_leaky_relu(double negative_slope = 0.01) {
  return {.add = {}, .negative_slope = negative_slope};
}
/// For batch norm. identity: has the shape, dtype and device of bn's result.
inline BatchNormEpilogue then_add_relu(Tensor identity) {
  return {.add = std::move(identity), .negative_slope = 0};
}

}  // namespace weft::nn
