#include "weft/nn/activation.h"

#include "weft/autograd/elementwise.h"
#include "weft/autograd/indexing.h"
#include "weft/core/base/error.h"
#include "weft/nn/repr.h"
#include "weft/tensor/creation.h"

namespace weft::nn {

Tensor relu6(const Tensor& x) { return where(lt(x, 6), relu(x), clamp_max(x.detach(), 6)); }
Tensor hardsigmoid(const Tensor& x) { return relu6(x + 3.0) / 6.0; }
Tensor hardswish(const Tensor& x) { return x * relu6(x + 3.0) / 6.0; }

Tensor prelu(const Tensor& x, const Tensor& weight) {
  const std::int64_t n = weight.numel(), channels = x.dim() < 2 ? 1 : x.shape(1);
  WEFT_CHECK(weight.dim() <= 1 && (n == 1 || n == channels), Shape, "prelu", "weight: got ",
             weight.shape(), ", expected [1], or one number for each channel of the input ",
             x.shape());
  Shape shape = Shape::filled(x.dim(), 1);
  if (n > 1) shape[1] = n;
  // Where x is positive, the weight's gradient is 0, also if x is infinite.
  const Tensor positive = gt(x, 0);
  return where(positive, x, masked_fill(x, positive, 0) * weight.reshape(shape));
}

PReLU::PReLU(std::int64_t num_parameters, double init) {
  WEFT_CHECK(num_parameters > 0, InvalidArgument, "PReLU", "num_parameters: got ", num_parameters,
             ", expected more than 0");
  weight = parameter("weight", full({num_parameters}, init));
  set_description(weft::detail::concat("num_parameters=", num_parameters));
}

LeakyReLU::LeakyReLU(double negative_slope) : negative_slope_(negative_slope) {
  WEFT_CHECK(negative_slope >= 0, InvalidArgument, "LeakyReLU", "negative_slope: got ",
             negative_slope, ", expected 0 or more");
  set_description(weft::detail::concat("negative_slope=", negative_slope));
}

GELU::GELU(const std::string& approximate) : tanh_(approximate == "tanh") {
  WEFT_CHECK(tanh_ || approximate == "none", InvalidArgument, "GELU", "approximate: got '",
             approximate, "', expected 'none' or 'tanh'");
  set_description("approximate='" + approximate + "'");
}

ELU::ELU(double alpha) : alpha_(alpha) { set_description("alpha=" + detail::repr(alpha)); }

Softplus::Softplus(double beta, double threshold) : beta_(beta), threshold_(threshold) {
  WEFT_CHECK(beta > 0, InvalidArgument, "Softplus", "beta: got ", beta, ", expected more than 0");
  set_description("beta=" + detail::repr(beta) + ", threshold=" + detail::repr(threshold));
}

Softmax::Softmax(std::int64_t dim) : dim_(dim) {
  set_description(weft::detail::concat("dim=", dim));
}

LogSoftmax::LogSoftmax(std::int64_t dim) : dim_(dim) {
  set_description(weft::detail::concat("dim=", dim));
}

}  // namespace weft::nn
