// Layer normalisation.
#pragma once

#include "weft/autograd/norm.h"
#include "weft/nn/module.h"

namespace weft::nn {

/// PyTorch's defaults.
struct LayerNormOptions {
  double eps = 1e-5;
  bool elementwise_affine = true;  ///< with weight and bias
  bool bias = true;                ///< false: with weight alone
};

/// y = (x - mean) / sqrt(var + eps) * weight + bias, with mean and (biased) variance over the last
/// dimensions of x, whose sizes are normalized_shape. x [..,normalized_shape] -> the same shape.
/// weight and bias have the shape normalized_shape and start as 1 and 0; without elementwise_affine
/// there are none, without bias there is no bias. Throws Shape when x ends in other dimensions. The
/// constructor throws InvalidArgument for a normalized_shape that is empty or not positive.
class LayerNorm : public Module<LayerNorm> {
 public:
  explicit LayerNorm(const Shape& normalized_shape, const LayerNormOptions& options = {});
  explicit LayerNorm(std::int64_t features, const LayerNormOptions& options = {})
      : LayerNorm(Shape{features}, options) {}
  Tensor forward(const Tensor& x) const {
    return layer_norm(x, normalized_shape_, weight, bias, eps_);
  }

  Parameter weight, bias;  ///< undefined if there is none

 private:
  Shape normalized_shape_;
  double eps_;
};

}  // namespace weft::nn
