#include "weft/autograd/dropout.h"

#include "weft/autograd/arithmetic.h"
#include "weft/autograd/internal.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft {

const Tensor& raw::bernoulli_(const Tensor& y, double p, const DrawnPart& part) {
  if (part.count == 1) return bernoulli_(y, p);
  Shape shape = y.shape();
  const int dim = normalize_dim(part.dim, y.dim(), "dropout");
  shape[dim] = checked_mul(shape[dim], part.count, "dropout");
  const Tensor whole = empty(shape, {y.dtype(), y.device()});
  bernoulli_(whole, p);
  return copy_(y, narrow(whole, dim, part.index * y.shape(dim), y.shape(dim)));
}

using autograd::check_defined;
using autograd::check_probability;

namespace {

// x times a mask that is drawn here: 0 with probability p, else 1 / (1 - p).
Tensor drop(const Tensor& x, const Tensor& mask, double p, const DrawnPart& part = {}) {
  raw::bernoulli_(mask, 1 - p, part);
  if (p < 1) raw::mul_(mask, 1 / (1 - p));
  return mul(x, mask);
}

}  // namespace

Tensor dropout(const Tensor& x, double p, bool training, const DrawnPart& part) {
  check_defined("dropout", "x", x);
  check_probability("dropout", p);
  return !training || p == 0 ? x : drop(x, empty_like(x), p, part);
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
