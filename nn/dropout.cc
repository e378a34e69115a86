#include "weft/nn/dropout.h"

#include "weft/core/base/error.h"

namespace weft::nn {

namespace {

std::string describe(const char* op, double p) {
  WEFT_CHECK(p >= 0 && p <= 1, InvalidArgument, op, "p: got ", p, ", expected 0 to 1");
  return weft::detail::concat("p=", p);
}

}  // namespace

Dropout::Dropout(double p) : p_(p) { set_description(describe("Dropout", p)); }

Dropout2d::Dropout2d(double p) : p_(p) { set_description(describe("Dropout2d", p)); }

}  // namespace weft::nn
