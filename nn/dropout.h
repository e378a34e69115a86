// Dropout.
#pragma once

#include "weft/nn/module.h"

namespace weft::nn {

/// In training each element is 0 with probability p, else divided by 1 - p; in eval mode x itself.
/// The mask takes one number per element, in row-major order, from the thread's generator: other
/// masks than PyTorch's for the same seed, whose CPU build draws them with MKL's generator. With
/// p = 0 nothing is drawn. Any shape; throws InvalidArgument for p outside [0, 1].
class Dropout : public Module<Dropout> {
 public:
  explicit Dropout(double p = 0.5);
  Tensor forward(const Tensor& x) { return dropout(x, p_, is_training()); }

 private:
  double p_;
};

/// Dropout of whole channels: in training each [..] of x [N,C,..] is 0 with probability p, else
/// divided by 1 - p (Tompson et al., "Efficient Object Localization Using Convolutional Networks",
/// 2015). One number per channel is drawn; not PyTorch's, as Dropout's. Throws InvalidArgument for
/// p outside [0, 1], and Shape below 3 dimensions.
class Dropout2d : public Module<Dropout2d> {
 public:
  explicit Dropout2d(double p = 0.5);
  Tensor forward(const Tensor& x) { return dropout2d(x, p_, is_training()); }

 private:
  double p_;
};

}  // namespace weft::nn
