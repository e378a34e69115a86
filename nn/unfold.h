// The windows of images as columns, and back, as layers.
#pragma once

#include "weft/autograd/unfold.h"
#include "weft/nn/module.h"
#include "weft/nn/pair.h"

namespace weft::nn {

/// PyTorch's defaults.
struct UnfoldOptions {
  Pair dilation = 1;
  Pair padding = 0;
  Pair stride = 1;
};

/// x [N,C,H,W] -> [N,C kh kw,Lh Lw], as weft::unfold, whose errors it throws; the constructor
/// throws InvalidArgument for wrong options.
class Unfold : public Module<Unfold> {
 public:
  explicit Unfold(Pair kernel, const UnfoldOptions& options = {});
  Tensor forward(const Tensor& x) const { return unfold(x, params_); }

 private:
  UnfoldParams params_;
};

/// x [N,C kh kw,Lh Lw] -> [N,C,size.h,size.w], as weft::fold.
class Fold : public Module<Fold> {
 public:
  Fold(Pair size, Pair kernel, const UnfoldOptions& options = {});
  Tensor forward(const Tensor& x) const { return fold(x, size_, params_); }

 private:
  Pair size_;
  UnfoldParams params_;
};

}  // namespace weft::nn
