// Generated from the lists in kernels/elementwise_list.h.
#include "weft/autograd/elementwise.h"

#include "weft/autograd/autocast.h"
#include "weft/autograd/description.h"
#include "weft/autograd/differentiable.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/internal.h"
#include "weft/autograd/operand.h"
#include "weft/autograd/recorded_rules.h"
#include "weft/core/base/error.h"
#include "weft/kernels/functors.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft {

using autograd::autocast;
using autograd::autocasts;
using autograd::CastPolicy;
using autograd::check_defined;
using autograd::creates_graph;
using autograd::DifferentiableNode;
using autograd::Gradients;
using autograd::kInfinity;
using autograd::may_write;
using autograd::Operand;
using autograd::record;
using autograd::recording;
using autograd::SavedTensor;

namespace {

Saves saves_of(UnaryOp op) {
  switch (op) {
#define X(value, name, functor_name, ...) \
  case UnaryOp::value: return functor::functor_name::saves;
    WEFT_UNARY_OPS(X)
#undef X
#define X(value, functor_name, ...) \
  case UnaryOp::value: return functor::functor_name::saves;
    WEFT_SCALAR_OPS(X)
#undef X
  }
  return Saves::nothing;
}

class UnaryNode final : public DifferentiableNode {
 public:
  UnaryNode(const char* name, UnaryOp op, UnaryParams params, const Tensor& x, const Tensor& y)
      : DifferentiableNode(name), op_(op), params_(params) {
    add_input(x);
    const Saves saves = saves_of(op);
    if (saves != Saves::nothing) saved_ = saves == Saves::x ? save(x) : save_output(y);
  }

  void apply(Gradients& grads) override {
    if (!grads.wants(0)) return;
    if (op_ == UnaryOp::add_scalar) return grads.set(0, grads.y());
    const Tensor saved = saves_of(op_) == Saves::nothing ? Tensor() : saved_.get(*this);
    grads.set(0, creates_graph() ? autograd::unary_gradient(op_, params_, grads.y(), saved)
                                 : raw::unary_backward(op_, grads.take(), saved, params_));
  }
  void describe(autograd::Description& d) const override { d.set(op_, params_); }

 private:
  void release_saved() override { saved_.reset(); }

  UnaryOp op_;
  UnaryParams params_;
  SavedTensor saved_;
};

Tensor record_unary(const char* name, UnaryOp op, const Tensor& x, Tensor y,
                    UnaryParams params = {}) {
  if (!recording(x)) return y;
  return record<UnaryNode>(y, name, op, params, x, y);
}

// add, sub: both operands get the gradient itself, b of sub with a minus sign.
class SumNode final : public DifferentiableNode {
 public:
  SumNode(const char* name, BinaryOp op, const Tensor& a, const Tensor& b)
      : DifferentiableNode(name), op_(op), a_(a), b_(b) {
    add_input(a);
    add_input(b);
  }

  void apply(Gradients& grads) override {
    if (grads.wants(0)) grads.set(0, a_.fit(grads.y()));
    if (!grads.wants(1)) return;
    const Tensor grad = b_.fit(grads.y());
    grads.set(1, op_ == BinaryOp::sub ? neg(grad) : grad);
  }

 private:
  BinaryOp op_;
  Operand a_, b_;
};

class BinaryNode final : public DifferentiableNode {
 public:
  BinaryNode(const char* name, BinaryOp op, const Tensor& a, const Tensor& b)
      : DifferentiableNode(name), op_(op), a_info_(a), b_info_(b) {
    add_input(a);
    add_input(b);
    // d(ab)/da = b and d(a/b)/da = 1/b do not need a; d(ab)/db = a does not need b.
    if (needs(1) || (op != BinaryOp::mul && op != BinaryOp::div)) a_ = save(a);
    if (needs(0) || op != BinaryOp::mul) b_ = save(b);
  }

  void apply(Gradients& grads) override {
    if (grads.wants(0)) grads.set(0, a_info_.fit(gradient(false, grads.y())));
    if (grads.wants(1)) grads.set(1, b_info_.fit(gradient(true, grads.y())));
  }

 private:
  Tensor gradient(bool of_b, const Tensor& grad) const {
    if (op_ == BinaryOp::mul) return mul(grad, (of_b ? a_ : b_).get(*this));
    if (op_ == BinaryOp::div && !of_b) return div(grad, b_.get(*this));
    const auto rule = creates_graph() ? autograd::binary_gradient : raw::binary_backward;
    return rule(op_, of_b, grad, a_.get(*this), b_.get(*this));
  }
  void release_saved() override {
    a_.reset();
    b_.reset();
  }

  BinaryOp op_;
  Operand a_info_, b_info_;
  SavedTensor a_, b_;
};

template <class Functor>
Tensor record_binary(const char* name, BinaryOp op, const Tensor& a, const Tensor& b, Tensor y) {
  if (!recording(a, b)) return y;
  using Rule = std::conditional_t<Functor::passes_grad, SumNode, BinaryNode>;
  return record<Rule>(std::move(y), name, op, a, b);
}

constexpr CastPolicy policy_of(UnaryOp op) {
  switch (op) {
    case UnaryOp::exp:
    case UnaryOp::expm1:
    case UnaryOp::log:
    case UnaryOp::log1p:
    case UnaryOp::tan:
    case UnaryOp::pow_scalar:
    case UnaryOp::rdiv_scalar:
    case UnaryOp::reciprocal:
    case UnaryOp::rsqrt:
    case UnaryOp::square: return CastPolicy::f32_on_cuda;
    default: return CastPolicy::none;
  }
}

constexpr CastPolicy policy_of(BinaryOp op) {
  return op == BinaryOp::pow ? CastPolicy::f32_on_cuda : CastPolicy::none;
}

// The number beside x. An integer x is recorded for an observer alone.
Tensor scalar_like(double value, const Tensor& x) {
  return scalar(value, {raw::result_type(x.dtype(), value), x.device()});
}

}  // namespace

#define X(value, name, ...)                                      \
  Tensor name(const Tensor& x) {                                 \
    constexpr CastPolicy policy = policy_of(UnaryOp::value);     \
    if (autocasts(policy, x)) [[unlikely]]                       \
      return name(autocast(policy, x));                          \
    return record_unary(#name, UnaryOp::value, x, raw::name(x)); \
  }
WEFT_UNARY_OPS(X)
#undef X

#define X(value, name, functor_name, ...)                                                       \
  Tensor name(const Tensor& a, const Tensor& b) {                                               \
    constexpr CastPolicy policy = policy_of(BinaryOp::value);                                   \
    if (autocasts(policy, a, b)) [[unlikely]]                                                   \
      return name(autocast(policy, a), autocast(policy, b));                                    \
    return record_binary<functor::functor_name>(#name, BinaryOp::value, a, b, raw::name(a, b)); \
  }
WEFT_BINARY_OPS(X)
#undef X

Tensor add(const Tensor& a, double b) {
  return record_unary("add", UnaryOp::add_scalar, a, raw::add(a, b), {.a = b});
}
Tensor sub(const Tensor& a, double b) {
  return record_unary("sub", UnaryOp::add_scalar, a, raw::sub(a, b), {.a = -b});
}
Tensor sub(double a, const Tensor& b) {
  return record_unary("sub", UnaryOp::rsub_scalar, b, raw::sub(a, b), {.a = a});
}
Tensor mul(const Tensor& a, double b) {
  return record_unary("mul", UnaryOp::mul_scalar, a, raw::mul(a, b), {.a = b});
}
Tensor div(const Tensor& a, double b) {
  if (autograd::divides_gradient(a, b)) return div(a, scalar_like(b, a));
  // The gradient needs the inverse; b is for those who read the tape, and is not 0 for a quotient.
  return record_unary("div", UnaryOp::mul_scalar, a, raw::div(a, b), {.a = 1 / b, .b = b});
}
Tensor div(double a, const Tensor& b) {
  constexpr CastPolicy policy = policy_of(UnaryOp::rdiv_scalar);
  if (autocasts(policy, b)) [[unlikely]]
    return div(a, autocast(policy, b));
  return record_unary("div", UnaryOp::rdiv_scalar, b, raw::div(a, b), {.a = a});
}
Tensor pow(const Tensor& a, double b) {
  constexpr CastPolicy policy = policy_of(UnaryOp::pow_scalar);
  if (autocasts(policy, a)) [[unlikely]]
    return pow(autocast(policy, a), b);
  return record_unary("pow", UnaryOp::pow_scalar, a, raw::pow(a, b), {.a = b});
}
// At a tie a gets half of the gradient, as if b were a tensor.
Tensor maximum(const Tensor& a, double b) {
  return recording(a) ? maximum(a, scalar_like(b, a)) : raw::maximum(a, b);
}
Tensor minimum(const Tensor& a, double b) {
  return recording(a) ? minimum(a, scalar_like(b, a)) : raw::minimum(a, b);
}
Tensor remainder(const Tensor& a, double b) {
  return recording(a) ? remainder(a, scalar_like(b, a)) : raw::remainder(a, b);
}
Tensor floor_divide(const Tensor& a, double b) {
  return recording(a) ? floor_divide(a, scalar_like(b, a)) : raw::floor_divide(a, b);
}

Tensor clamp(const Tensor& x, std::optional<double> min, std::optional<double> max) {
  return record_unary("clamp", UnaryOp::clamp, x, raw::clamp(x, min, max),
                      {.a = min.value_or(-kInfinity), .b = max.value_or(kInfinity)});
}

Tensor leaky_relu(const Tensor& x, double negative_slope) {
  return record_unary("leaky_relu", UnaryOp::leaky_relu, x, raw::leaky_relu(x, negative_slope),
                      {.a = negative_slope});
}

Tensor elu(const Tensor& x, double alpha) {
  return record_unary("elu", UnaryOp::elu, x, raw::elu(x, alpha), {.a = alpha});
}

Tensor softplus(const Tensor& x, double beta, double threshold) {
  constexpr CastPolicy policy = CastPolicy::f32_on_cuda;
  if (autocasts(policy, x)) [[unlikely]]
    return softplus(autocast(policy, x), beta, threshold);
  return record_unary("softplus", UnaryOp::softplus, x, raw::softplus(x, beta, threshold),
                      {.a = beta, .b = threshold});
}

Tensor smooth_l1(const Tensor& x, double beta) {
  return record_unary("smooth_l1", UnaryOp::smooth_l1, x, raw::smooth_l1(x, beta), {.a = beta});
}

namespace {

// Whether x can become the result of an operation on it: nobody else holds it, and the tape needs
// nothing that shares its storage (such as a saved tensor or the base of a view). An observer would
// take a write that comes before its node for one that the tape does not know.
bool reusable(const Tensor& x) {
  const autograd::Meta* meta = autograd::meta_of(x);
  return x.defined() && may_write(x) && is_floating(x.dtype()) &&
         !(x.requires_grad() && x.is_leaf()) && !(meta && (meta->leaf || meta->base)) &&
         !autograd::is_observed();
}

// For operations whose backward rule needs only the result.
Tensor into_operand(const char* name, UnaryOp op, Tensor&& x, UnaryParams params = {}) {
  raw::unary_(op, x, params);
  if (recording(x)) {
    record<UnaryNode>(x, name, op, params, x, x);
  } else {
    x.impl()->autograd.reset();  // under NoGrad the result has no history
  }
  return std::move(x);
}

}  // namespace

Tensor relu(Tensor&& x) {
  if (!reusable(x)) return relu(static_cast<const Tensor&>(x));
  return into_operand("relu", UnaryOp::relu, std::move(x));
}

Tensor leaky_relu(Tensor&& x, double negative_slope) {
  if (!reusable(x) || !(negative_slope >= 0)) {
    return leaky_relu(static_cast<const Tensor&>(x), negative_slope);
  }
  return into_operand("leaky_relu", UnaryOp::leaky_relu, std::move(x), {.a = negative_slope});
}

}  // namespace weft
