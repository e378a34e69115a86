#include "weft/nn/dropout.h"

#include "weft/core/error.h"

namespace weft::nn {

Dropout::Dropout(double p) : p_(p) {
  WEFT_CHECK(p >= 0 && p <= 1, InvalidArgument, "Dropout", "p: got ", p, ", expected 0 to 1");
  set_description(weft::detail::concat("p=", p));
}

Tensor Dropout::forward(Tensor x) {
  if (!is_training() || p_ == 0) return x;
  const Tensor mask = empty_like(x);
  raw::bernoulli_(mask, 1 - p_);
  if (p_ < 1) raw::mul_(mask, 1 / (1 - p_));
  return mul(x, mask);
}

}  // namespace weft::nn
