#include "weft/autograd/operand.h"

#include "weft/autograd/internal.h"
#include "weft/tensor/ops.h"

namespace weft::autograd {

Tensor Operand::reduce(Tensor grad) const {
  if (!(grad.shape() == shape_)) {
    const auto expanded = [shape = grad.shape()](const Tensor& g) { return g.expand(shape); };
    grad = record_linear("sum_to", raw::sum_to(grad, shape_), grad, expanded);
  }
  return grad.to(dtype_);
}

}  // namespace weft::autograd
