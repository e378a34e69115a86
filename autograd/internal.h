// What several operations, and the engine, share. Private to autograd/.
#pragma once

#include <array>
#include <functional>
#include <limits>
#include <utility>

#include "weft/autograd/description.h"
#include "weft/autograd/differentiable.h"
#include "weft/autograd/graph.h"
#include "weft/core/base/error.h"

namespace weft::autograd {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

inline void check_defined(const char* op, const char* name, const Tensor& x) {
  WEFT_CHECK(x.defined(), InvalidArgument, op, name, " is an undefined tensor");
}

inline void check_probability(const char* op, double p) {
  WEFT_CHECK(p >= 0 && p <= 1, InvalidArgument, op, "p: got ", p, ", expected 0 to 1");
}

/// Whether nobody else can see the tensor's memory.
inline bool is_alone(const Tensor& x) {
  return x.impl()->use_count() == 1 && x.storage()->use_count() == 1;
}
/// The same, and weft owns the memory and each element has an address of its own.
inline bool may_write(const Tensor& x) {
  return is_alone(x) && x.storage()->owned() && x.is_dense();
}

/// y = A x with a linear map A. The rule applies `adjoint`, the map A^T, to the gradient; it is
/// made of recorded operations.
class LinearMapNode final : public DifferentiableNode {
 public:
  using Adjoint = std::function<Tensor(const Tensor&)>;
  using Describe = std::function<void(Description&)>;
  LinearMapNode(const char* name, const Tensor& x, Adjoint adjoint, Describe describe)
      : DifferentiableNode(name), adjoint_(std::move(adjoint)), describe_(std::move(describe)) {
    add_input(x);
  }
  void apply(Gradients& grads) override {
    if (grads.wants(0)) grads.set(0, adjoint_(grads.y()));
  }
  void describe(Description& d) const override { describe_ ? describe_(d) : d.op.clear(); }

 private:
  Adjoint adjoint_;
  Describe describe_;
};

/// y, on the tape if x requires a gradient.
template <class Adjoint, class Describe = std::nullptr_t>
Tensor record_linear(const char* name, Tensor y, const Tensor& x, Adjoint adjoint,
                     Describe describe = {}) {
  if (!recording(x)) return y;
  return record<LinearMapNode>(std::move(y), name, x, std::move(adjoint), std::move(describe));
}

/// y, a result that has no gradient. If the thread has an observer (description.h), the tape keeps
/// its operands nonetheless, also under NoGrad.
template <class... Operands>
Tensor observed(const char* name, const PlainDetail& detail, Tensor y,
                const Operands&... operands) {
  if ((requires_grad(operands) || ...) && is_observed()) [[unlikely]] {
    const std::array<const Tensor*, sizeof...(operands)> all{&operands...};
    tell_of_operation(name, y, all, detail);
  }
  return y;
}

/// y = raw::gather(x, dim, index), on the tape under this name.
Tensor record_gather(const char* name, Tensor y, const Tensor& x, std::int64_t dim,
                     const Tensor& index);

/// Zeros [shape] with each element of g added at its position along `dim`: the adjoint of a gather,
/// on the tape.
Tensor put_back(const Tensor& g, std::int64_t dim, const Tensor& index, const Shape& shape);

/// y, a value of x that was chosen among all of its elements, on the tape under this name: those
/// equal to it share the gradient.
Tensor record_choice(const char* name, const Tensor& y, const Tensor& x);
/// a / b for addcdiv and addcdiv_, whose name `op` is. Throws Dtype if both are integers.
Tensor addcdiv_quotient(const char* op, const Tensor& a, const Tensor& b);
/// Whether the tape records x / b with a b that is not 0 and of which 1 / b is infinite in x's
/// dtype. The gradient is divided by b then; else it is multiplied by 1 / b.
bool divides_gradient(const Tensor& x, double b);
/// y, which is x after raw::scatter_(x, dim, index, source) or with a number, on the tape. Without
/// a source: a number.
void record_scatter(const char* name, const Tensor& y, const Tensor& x, std::int64_t dim,
                    const Tensor& index, const Tensor& source);

/// Called after a recorded write into a view: it becomes the history of the base, too.
void record_into_base(const Tensor& view);
/// Remembers x as the base of a view that is not on the tape, so that a tensor that requires a
/// gradient can be written into it: y = zeros({2, 3}); y[0] = w.
void link_plain_view(const Tensor& view, const Tensor& x);
/// x gets a history of its own, or becomes a leaf: what is written to it is no longer written to
/// its base, unless the tape knows that.
void forget_plain_base(const Tensor& x);

/// y, a view or copy of x, on the tape by Rule(args..., x); or x itself, if y is x.
template <class Rule, class... Args>
Tensor record_view(Tensor y, const Tensor& x, Args&&... args) {
  if (!recording(x) || y.same(x)) return y;
  attach(y, make_intrusive<Rule>(std::forward<Args>(args)..., x));
  mark_view(y, x);
  return y;
}

}  // namespace weft::autograd
