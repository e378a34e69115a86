#include "weft/nn/instance_norm.h"

#include "weft/core/base/error.h"
#include "weft/nn/repr.h"
#include "weft/tensor/creation.h"

namespace weft::nn {

InstanceNorm2d::InstanceNorm2d(std::int64_t channels, const InstanceNormOptions& options)
    : channels_(channels), eps_(options.eps) {
  WEFT_CHECK(channels > 0, InvalidArgument, "InstanceNorm2d", "channels: got ", channels,
             ", expected 1 or more");
  if (options.affine) {
    weight = parameter("weight", ones({channels}));
    bias = parameter("bias", zeros({channels}));
  }
  set_description(weft::detail::concat(channels, ", eps=", detail::repr(options.eps),
                                       ", momentum=0.1, affine=", detail::repr(options.affine),
                                       ", track_running_stats=False"));
}

Tensor InstanceNorm2d::forward(const Tensor& x) const {
  if (x.dim() == 3) return forward(x.unsqueeze(0)).squeeze(0);
  WEFT_CHECK(x.dim() == 4 && x.shape(1) == channels_, Shape, "InstanceNorm2d", "input: got ",
             x.shape(), ", expected [N,", channels_, ",H,W]");
  return group_norm(x, channels_, weight, bias, eps_);
}

}  // namespace weft::nn
