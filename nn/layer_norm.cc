#include "weft/nn/layer_norm.h"

#include <algorithm>

#include "weft/core/base/error.h"
#include "weft/nn/repr.h"
#include "weft/tensor/creation.h"

namespace weft::nn {

LayerNorm::LayerNorm(const Shape& normalized_shape, const LayerNormOptions& options)
    : normalized_shape_(normalized_shape), eps_(options.eps) {
  WEFT_CHECK(
      !normalized_shape.empty() && std::all_of(normalized_shape.begin(), normalized_shape.end(),
                                               [](std::int64_t n) { return n > 0; }),
      InvalidArgument, "LayerNorm", "normalized_shape: got ", normalized_shape,
      ", expected one dimension or more, all positive");
  if (options.elementwise_affine) {
    weight = parameter("weight", ones(normalized_shape));
    if (options.bias) bias = parameter("bias", zeros(normalized_shape));
  }
  set_description(detail::repr(normalized_shape) + ", eps=" + detail::repr(options.eps) +
                  ", elementwise_affine=" + detail::repr(options.elementwise_affine));
}

}  // namespace weft::nn
