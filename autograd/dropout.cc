#include "weft/autograd/dropout.h"

#include "weft/autograd/arithmetic.h"
#include "weft/autograd/internal.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft {

using autograd::check_defined;
using autograd::check_probability;

namespace {

// x times a mask that is drawn here: 0 with probability p, else 1 / (1 - p).
Tensor drop(const Tensor& x, const Tensor& mask, double p) {
  raw::bernoulli_(mask, 1 - p);
  if (p < 1) raw::mul_(mask, 1 / (1 - p));
  return mul(x, mask);
}

}  // namespace

Tensor dropout(const Tensor& x, double p, bool training) {
  check_defined("dropout", "x", x);
  check_probability("dropout", p);
  return !training || p == 0 ? x : drop(x, empty_like(x), p);
}

Tensor dropout2d(const Tensor& x, double p, bool training) {
  check_defined("dropout2d", "x", x);
  check_probability("dropout2d", p);
  WEFT_CHECK(x.dim() >= 3, Shape, "dropout2d", "x: got ", x.shape(), ", expected [N,C,..]");
  if (!training || p == 0) return x;
  Shape channels = Shape::filled(x.dim(), 1);
  for (const int d : {0, 1}) channels[d] = x.shape(d);
  return drop(x, empty(channels, {x.dtype(), x.device()}), p);
}

}  // namespace weft
