#include "weft/parallel/comm_hooks.h"

#include "weft/tensor/ops.h"

namespace weft::parallel {

Reduction bf16_compress(comm::ProcessGroup& group, const Tensor& gradients) {
  const Tensor part = raw::to(gradients, DType::bf16);
  raw::mul_(part, 1.0 / group.size());
  return {group.all_reduce(part), [gradients, part] {
            if (!part.same(gradients)) raw::copy_(gradients, part);
          }};
}

}  // namespace weft::parallel
