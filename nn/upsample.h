// Upsample: changes the size of images.
#pragma once

#include "weft/autograd/interpolate.h"
#include "weft/nn/module.h"

namespace weft::nn {

/// weft::interpolate as a layer, with its errors: x [N,C,H,W] or [N,C,L].
///   nn::Upsample({.scale_factor = {2}, .mode = "bilinear"})
class Upsample : public Module<Upsample> {
 public:
  explicit Upsample(const InterpolateOptions& options);
  Tensor forward(const Tensor& x) const { return interpolate(x, options_); }

 private:
  InterpolateOptions options_;
};

}  // namespace weft::nn
