// Instance normalisation.
#pragma once

#include "weft/autograd/norm.h"
#include "weft/nn/module.h"

namespace weft::nn {

/// PyTorch's defaults.
struct InstanceNormOptions {
  double eps = 1e-5;
  bool affine = false;  ///< with weight and bias
};

/// x [N,C,H,W] or [C,H,W] -> the same shape: each channel of each image is normalised over its
/// pixels, as by group_norm with a group for each channel (Ulyanov et al., arXiv 1607.08022). The
/// statistics are always those of the input; there are no running ones. Throws Shape for another
/// number of channels, InvalidArgument for fewer than one.
class InstanceNorm2d : public Module<InstanceNorm2d> {
 public:
  explicit InstanceNorm2d(std::int64_t channels, const InstanceNormOptions& options = {});
  Tensor forward(const Tensor& x) const;

  Parameter weight, bias;  ///< undefined without affine

 private:
  std::int64_t channels_;
  double eps_;
};

}  // namespace weft::nn
