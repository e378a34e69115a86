#include "weft/autograd/operand.h"

#include "weft/tensor/ops.h"

namespace weft::autograd {

Tensor Operand::reduce(Tensor grad) const {
  if (!(grad.shape() == shape_)) grad = raw::sum_to(grad, shape_);
  if (grad.dtype() != dtype_) grad = raw::to(grad, dtype_);
  return grad;
}

}  // namespace weft::autograd
