// Group normalisation.
#pragma once

#include "weft/autograd/norm.h"
#include "weft/nn/module.h"

namespace weft::nn {

/// PyTorch's defaults.
struct GroupNormOptions {
  double eps = 1e-5;
  bool affine = true;  ///< with weight and bias
};

/// Like weft::group_norm: x [N,C,..] -> the same shape, normalised over each of `groups` groups of
/// consecutive channels. weight [C] starts as 1, bias [C] as 0. Throws InvalidArgument unless
/// groups divides channels, and Shape for another number of channels.
class GroupNorm : public Module<GroupNorm> {
 public:
  GroupNorm(std::int64_t groups, std::int64_t channels, const GroupNormOptions& options = {});
  Tensor forward(const Tensor& x) const;

  Parameter weight, bias;  ///< undefined without affine

 private:
  std::int64_t groups_, channels_;
  double eps_;
};

}  // namespace weft::nn
