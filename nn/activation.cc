#include "weft/nn/activation.h"

#include "weft/core/base/error.h"
#include "weft/nn/repr.h"

namespace weft::nn {

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
