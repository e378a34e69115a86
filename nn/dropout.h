// Dropout.
#pragma once

#include "weft/autograd/dropout.h"
#include "weft/nn/module.h"

namespace weft::nn {

/// In training each element becomes 0 with probability p and is divided by 1 - p otherwise; in
/// evaluation the result is x itself. Any shape. The mask takes one number per element, in
/// row-major order, from the thread's generator, and none when p = 0. For the same seed the mask
/// differs from PyTorch's, whose CPU build draws it with MKL's generator. Throws InvalidArgument
/// for p outside [0, 1]. If shared_state() is a DrawnPart, each x is that part of a larger tensor.
class Dropout : public Module<Dropout> {
 public:
  explicit Dropout(double p = 0.5);
  Tensor forward(const Tensor& x) const;

 private:
  double p_;
};

/// Dropout of whole channels: in training each channel of x [N,C,..] becomes 0 with probability p
/// and is divided by 1 - p otherwise (Tompson et al., "Efficient Object Localization Using
/// Convolutional Networks", 2015). One number per channel is drawn; as for Dropout, the mask is not
/// PyTorch's. Throws InvalidArgument for p outside [0, 1], and Shape below 3 dimensions.
class Dropout2d : public Module<Dropout2d> {
 public:
  explicit Dropout2d(double p = 0.5);
  Tensor forward(const Tensor& x) const { return dropout2d(x, p_, is_training()); }

 private:
  double p_;
};

}  // namespace weft::nn
