#include "weft/nn/dropout.h"

#include <any>

#include "weft/core/base/error.h"

namespace weft::nn {

namespace {

std::string describe(const char* op, double p) {
  WEFT_CHECK(p >= 0 && p <= 1, InvalidArgument, op, "p: got ", p, ", expected 0 to 1");
  return weft::detail::concat("p=", p);
}

}  // namespace

Dropout::Dropout(double p) : p_(p) { set_description(describe("Dropout", p)); }

Tensor Dropout::forward(const Tensor& x) const {
  const auto* const part = std::any_cast<DrawnPart>(&shared_state());
  return dropout(x, p_, is_training(), part ? *part : DrawnPart());
}

Dropout2d::Dropout2d(double p) : p_(p) { set_description(describe("Dropout2d", p)); }

}  // namespace weft::nn
