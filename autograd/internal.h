// What the operations of several families share. Private to autograd/.
#pragma once

#include <functional>
#include <limits>
#include <utility>

#include "weft/autograd/graph.h"
#include "weft/core/base/error.h"

namespace weft::autograd {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

inline void check_defined(const char* op, const char* name, const Tensor& x) {
  WEFT_CHECK(x.defined(), InvalidArgument, op, name, " is an undefined tensor");
}

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

/// y, a view or copy of x, on the tape by Rule(args..., x); or x itself, if nothing was to do.
template <class Rule, class... Args>
Tensor record_view(Tensor y, const Tensor& x, Args&&... args) {
  if (!recording(x) || y.same(x)) return y;
  attach(y, make_intrusive<Rule>(std::forward<Args>(args)..., x));
  mark_view(y, x);
  return y;
}

}  // namespace weft::autograd
