#include "weft/parallel/comm_hooks.h"

#include "weft/tensor/ops.h"

namespace weft::parallel {

namespace {

Reduction sum_by_bf16(comm::ProcessGroup& group, const Tensor& gradients, double factor) {
  const Tensor part = raw::to(gradients, DType::bf16);
  raw::mul_(part, factor);
  return {group.all_reduce(part), [gradients, part] {
            if (!part.same(gradients)) raw::copy_(gradients, part);
          }};
}

}  // namespace

Reduction bf16_compress(comm::ProcessGroup& group, const Tensor& gradients) {
  return sum_by_bf16(group, gradients, 1.0 / group.size());
}

Reduction bf16_sum(comm::ProcessGroup& group, const Tensor& gradients) {
  return sum_by_bf16(group, gradients, 1);
}

}  // namespace weft::parallel
