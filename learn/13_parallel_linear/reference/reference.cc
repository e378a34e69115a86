#include "weft/learn/13_parallel_linear/reference/reference.h"

#include "weft/autograd/ops.h"

namespace weft::learn::reference {

Tensor column_parallel(const parallel::Collectives& ranks, const Tensor& x, const Tensor& weight,
                       const Tensor& bias) {
  return linear(ranks.copy_to(x), weight, bias);
}

Tensor row_parallel(const parallel::Collectives& ranks, const Tensor& x, const Tensor& weight,
                    const Tensor& bias) {
  return ranks.reduce_from(linear(x, weight, {})) + bias;
}

}  // namespace weft::learn::reference
