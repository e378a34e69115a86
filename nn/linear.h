// Fully connected layer.
#pragma once

#include "weft/autograd/matmul.h"
#include "weft/nn/module.h"

namespace weft::nn {

/// y = x weight^T + bias. x [..,in] -> [..,out]; weight [out,in], bias [out] or none. Initial
/// values as in PyTorch: both U(+-1/sqrt(in)); the bias is 0 if `in` is 0. Throws Shape if x's last
/// dimension is not `in`. The constructor throws InvalidArgument for a negative size.
class Linear : public Module<Linear> {
 public:
  Linear(std::int64_t in, std::int64_t out, bool with_bias = true);
  Tensor forward(const Tensor& x, Activation then = Activation::none) const {
    return linear(x, weight, bias, then);
  }

  Parameter weight, bias;
};

}  // namespace weft::nn
