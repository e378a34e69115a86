// The node of operations that are linear in their operand. Private to autograd/.
#pragma once

#include <functional>
#include <utility>

#include "weft/autograd/graph.h"

namespace weft::autograd {

/// y = A x with a linear map A. The rule applies `adjoint`, the map A^T, to the gradient.
class LinearMapNode final : public Node {
 public:
  using Adjoint = std::function<Tensor(const Tensor&)>;
  LinearMapNode(const char* name, const Tensor& x, Adjoint adjoint)
      : Node(name), adjoint_(std::move(adjoint)) {
    add_input(x);
  }
  void apply(Gradients& grads) override {
    if (grads.wants(0)) grads.set(0, adjoint_(grads.y()));
  }

 private:
  Adjoint adjoint_;
};

/// y, on the tape if x requires a gradient.
template <class Adjoint>
Tensor record_linear(const char* name, Tensor y, const Tensor& x, Adjoint adjoint) {
  return recording(x) ? record<LinearMapNode>(std::move(y), name, x, std::move(adjoint)) : y;
}

}  // namespace weft::autograd
