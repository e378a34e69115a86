// Pooling layers.
#pragma once

#include <optional>

#include "weft/nn/conv.h"
#include "weft/nn/module.h"

namespace weft::nn {

/// stride defaults to the kernel's size.
struct PoolOptions {
  std::optional<Pair> stride;
  Pair padding = 0;
  Pair dilation = 1;
  bool ceil_mode = false;
};

/// x [N,C,H,W] -> [N,C,Ho,Wo], the largest value of each window; Ho as in Conv2d.
/// Throws InvalidArgument when padding exceeds half the kernel.
class MaxPool2d : public Module<MaxPool2d> {
 public:
  explicit MaxPool2d(Pair kernel, const PoolOptions& options = {});
  Tensor forward(const Tensor& x) { return max_pool2d(x, params_); }

 private:
  Pool2dParams params_;
};

}  // namespace weft::nn
