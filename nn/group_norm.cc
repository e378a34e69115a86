#include "weft/nn/group_norm.h"

#include "weft/core/base/error.h"
#include "weft/nn/repr.h"
#include "weft/tensor/creation.h"

namespace weft::nn {

GroupNorm::GroupNorm(std::int64_t groups, std::int64_t channels, const GroupNormOptions& options)
    : groups_(groups), channels_(channels), eps_(options.eps) {
  WEFT_CHECK(groups > 0 && channels > 0 && channels % groups == 0, InvalidArgument, "GroupNorm",
             "groups ", groups, " must divide channels ", channels);
  if (options.affine) {
    weight = parameter("weight", ones({channels}));
    bias = parameter("bias", zeros({channels}));
  }
  set_description(weft::detail::concat(groups, ", ", channels, ", eps=", detail::repr(options.eps),
                                       ", affine=", detail::repr(options.affine)));
}

Tensor GroupNorm::forward(const Tensor& x) const {
  WEFT_CHECK(x.dim() >= 2 && x.shape(1) == channels_, Shape, "GroupNorm", "input: got ", x.shape(),
             ", expected [N,", channels_, ",..]");
  return group_norm(x, groups_, weight, bias, eps_);
}

}  // namespace weft::nn
