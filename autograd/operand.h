// What a rule remembers of an operand that may have been broadcast or promoted. Private to
// autograd/.
#pragma once

#include <utility>

#include "weft/tensor/tensor.h"

namespace weft::autograd {

/// Shape and dtype of an operand. fit() undoes broadcasting and promotion in its gradient.
class Operand {
 public:
  explicit Operand(const Tensor& x) : shape_(x.shape()), dtype_(x.dtype()) {}
  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  Tensor fit(Tensor grad) const {
    if (grad.dtype() == dtype_ && grad.shape() == shape_) [[likely]]
      return grad;
    return reduce(std::move(grad));
  }

 private:
  Tensor reduce(Tensor grad) const;

  Shape shape_;
  DType dtype_;
};

}  // namespace weft::autograd
