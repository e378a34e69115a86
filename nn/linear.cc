#include "weft/nn/linear.h"

#include "weft/core/base/error.h"
#include "weft/nn/init.h"
#include "weft/tensor/creation.h"

namespace weft::nn {

Linear::Linear(std::int64_t in, std::int64_t out, bool with_bias) {
  WEFT_CHECK(in >= 0 && out >= 0, InvalidArgument, "Linear",
             "features must not be negative, got in ", in, ", out ", out);
  weight = parameter("weight", empty({out, in}));
  if (with_bias) bias = parameter("bias", empty({out}));
  init::default_weight_and_bias(weight, bias);
  set_description(weft::detail::concat("in_features=", in, ", out_features=", out,
                                       ", bias=", with_bias ? "True" : "False"));
}

}  // namespace weft::nn
