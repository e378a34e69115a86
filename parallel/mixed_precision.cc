#include "weft/parallel/mixed_precision.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "weft/autograd/ops.h"
#include "weft/core/base/error.h"

namespace weft::parallel {

void check(const MixedPrecisionPolicy& policy) {
  for (const auto& [what, dtype] : {std::pair("param_dtype", policy.param_dtype),
                                    {"reduce_dtype", policy.reduce_dtype},
                                    {"output_dtype", policy.output_dtype}}) {
    WEFT_CHECK(!dtype || is_floating(*dtype), Dtype, "fully_shard", "mp_policy's ", what, " is ",
               *dtype, ": expected a floating dtype");
  }
}

std::string to_string(const MixedPrecisionPolicy& policy) {
  const auto text = [](std::optional<DType> dtype) {
    return dtype ? weft::to_string(*dtype) : "unset";
  };
  return detail::concat("param_dtype ", text(policy.param_dtype), ", reduce_dtype ",
                        text(policy.reduce_dtype), ", output_dtype ", text(policy.output_dtype),
                        ", cast_forward_inputs ", policy.cast_forward_inputs);
}

void cast_floating(std::span<Tensor> tensors, DType dtype) {
  const std::vector<Tensor> before(tensors.begin(), tensors.end());
  for (std::size_t i = 0; i < before.size(); ++i) {
    const Tensor& x = before[i];
    if (!x.defined() || !is_floating(x.dtype()) || x.dtype() == dtype) continue;
    const auto first = static_cast<std::size_t>(
        std::ranges::find_if(before, [&](const Tensor& y) { return y.same(x); }) - before.begin());
    tensors[i] = first < i ? tensors[first] : x.to(dtype);
  }
}

}  // namespace weft::parallel
