#include "weft/nn/init.h"

#include <cmath>

#include "weft/core/error.h"
#include "weft/tensor/ops.h"

namespace weft::nn::init {

namespace {

double fan_in(const Tensor& w) {
  WEFT_CHECK(w.dim() >= 2, Shape, "init", "fan_in needs at least 2 dimensions, got ", w.shape());
  std::int64_t fan = w.shape(1);
  for (int d = 2; d < w.dim(); ++d) fan *= w.shape(d);
  return static_cast<double>(fan);
}

}  // namespace

void uniform(const Tensor& x, double from, double to) { raw::uniform_(x, from, to); }

void kaiming_uniform(const Tensor& w, double a) {
  const double gain = std::sqrt(2.0 / (1 + a * a));
  const double std = gain / std::sqrt(fan_in(w));
  const double bound = std::sqrt(3.0) * std;
  uniform(w, -bound, bound);
}

void default_weight_and_bias(const Tensor& w, const Tensor& bias) {
  kaiming_uniform(w, std::sqrt(5.0));
  if (!bias.defined()) return;
  const double bound = 1 / std::sqrt(fan_in(w));
  uniform(bias, -bound, bound);
}

}  // namespace weft::nn::init
