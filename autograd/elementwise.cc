// Generated from the lists in kernels/elementwise.h, but for the tests of values.
#include "weft/autograd/elementwise.h"

#include "weft/autograd/autocast.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/internal.h"
#include "weft/core/base/error.h"
#include "weft/kernels/functors.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft {

using autograd::autocast;
using autograd::autocasts;
using autograd::CastPolicy;
using autograd::check_defined;
using autograd::Gradients;
using autograd::kInfinity;
using autograd::Node;
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

class UnaryNode final : public Node {
 public:
  UnaryNode(const char* name, UnaryOp op, UnaryParams params, const Tensor& x, const Tensor& y)
      : Node(name), op_(op), params_(params) {
    add_input(x);
    const Saves saves = saves_of(op);
    if (saves != Saves::nothing) saved_ = save(saves == Saves::x ? x : y);
  }

  void apply(Gradients& grads) override {
    if (!grads.wants(0)) return;
    if (op_ == UnaryOp::add_scalar) return grads.set(0, grads.y());
    static const Tensor& none = *new Tensor;
    const bool saves = saves_of(op_) != Saves::nothing;
    grads.set(0, raw::unary_backward(op_, grads.take(), saves ? saved_.get(*this) : none, params_));
  }

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

// add, sub: the gradient itself.
class SumNode final : public Node {
 public:
  SumNode(const char* name, BinaryOp op, const Tensor& a, const Tensor& b)
      : Node(name), op_(op), a_(a), b_(b) {
    add_input(a);
    add_input(b);
  }

  void apply(Gradients& grads) override {
    if (grads.wants(0)) grads.set(0, a_.fit(grads.y()));
    if (!grads.wants(1)) return;
    const Tensor grad = b_.fit(grads.y());
    grads.set(1, op_ == BinaryOp::sub ? raw::neg(grad) : grad);
  }

 private:
  BinaryOp op_;
  Operand a_, b_;
};

class BinaryNode final : public Node {
 public:
  BinaryNode(const char* name, BinaryOp op, const Tensor& a, const Tensor& b)
      : Node(name), op_(op), a_info_(a), b_info_(b) {
    add_input(a);
    add_input(b);
    // d(ab)/da = b and d(a/b)/da = 1/b do not look at a; d(ab)/db = a not at b.
    const bool linear_in_a = op == BinaryOp::mul || op == BinaryOp::div;
    if (needs(1) || !linear_in_a) a_ = save(a);
    if (needs(0) || op != BinaryOp::mul) b_ = save(b);
  }

  void apply(Gradients& grads) override {
    if (grads.wants(0)) grads.set(0, a_info_.fit(of_a(grads.y())));
    if (grads.wants(1)) grads.set(1, b_info_.fit(of_b(grads.y())));
  }

 private:
  Tensor of_a(const Tensor& grad) const {
    if (op_ == BinaryOp::mul) return raw::mul(grad, b_.get(*this));
    if (op_ == BinaryOp::div) return raw::div(grad, b_.get(*this));
    return raw::binary_backward(op_, false, grad, a_.get(*this), b_.get(*this));
  }
  Tensor of_b(const Tensor& grad) const {
    if (op_ == BinaryOp::mul) return raw::mul(grad, a_.get(*this));
    return raw::binary_backward(op_, true, grad, a_.get(*this), b_.get(*this));
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

Tensor scalar_like(double value, const Tensor& x) { return scalar(value, {x.dtype(), x.device()}); }

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
  return record_unary("div", UnaryOp::mul_scalar, a, raw::div(a, b), {.a = 1 / b});
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
// As with a tensor, half of the gradient at a tie.
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

// Whether x can become the result of an operation on it: nobody else holds it, and what the tape
// still needs of it does not share its storage (a saved tensor, or the base of a view would).
bool reusable(const Tensor& x) {
  const autograd::Meta* meta = autograd::meta_of(x);
  return x.defined() && x.impl()->use_count() == 1 && x.storage()->use_count() == 1 &&
         x.storage()->owned() && is_floating(x.dtype()) && x.is_dense() &&
         !(x.requires_grad() && x.is_leaf()) && !(meta && (meta->leaf || meta->base));
}

// For operations whose rule looks at the result alone.
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

namespace {

class WhereNode final : public Node {
 public:
  WhereNode(const Tensor& condition, const Tensor& a, const Tensor& b)
      : Node("where"), a_(a), b_(b) {
    add_input(a);
    add_input(b);
    condition_ = save(condition);
  }

  void apply(Gradients& grads) override {
    const Tensor zero = scalar_like(0, grads.y());
    const Tensor& condition = condition_.get(*this);
    if (grads.wants(0)) grads.set(0, a_.fit(raw::where(condition, grads.y(), zero)));
    if (grads.wants(1)) grads.set(1, b_.fit(raw::where(condition, zero, grads.y())));
  }

 private:
  void release_saved() override { condition_.reset(); }

  Operand a_, b_;
  SavedTensor condition_;
};

}  // namespace

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  Tensor y = raw::where(condition, a, b);
  return recording(a, b) ? record<WhereNode>(std::move(y), condition, a, b) : y;
}

namespace {

Tensor all_alike(const Tensor& x, bool value) {
  return full(x.shape(), value, {DType::boolean, x.device()});
}

}  // namespace

Tensor isnan(const Tensor& x) {
  check_defined("isnan", "x", x);
  return is_floating(x.dtype()) ? raw::ne(x, x) : all_alike(x, false);
}
Tensor isinf(const Tensor& x) {
  check_defined("isinf", "x", x);
  return is_floating(x.dtype()) ? raw::eq(raw::abs(x), kInfinity) : all_alike(x, false);
}
Tensor isfinite(const Tensor& x) {
  check_defined("isfinite", "x", x);
  return is_floating(x.dtype()) ? raw::lt(raw::abs(x), kInfinity) : all_alike(x, true);
}

bool equal(const Tensor& a, const Tensor& b) {
  check_defined("equal", "a", a);
  check_defined("equal", "b", b);
  return a.shape() == b.shape() && raw::all(raw::eq(a, b)).item<bool>();
}

Tensor isclose(const Tensor& a, const Tensor& b, double rtol, double atol, bool equal_nan) {
  WEFT_CHECK(rtol >= 0 && atol >= 0, InvalidArgument, "isclose",
             "tolerances must not be negative: rtol ", rtol, ", atol ", atol);
  const Tensor same = raw::eq(a, b);
  WEFT_CHECK(a.dtype() == b.dtype(), Dtype, "isclose", "dtype: a is ", a.dtype(), ", b is ",
             b.dtype());
  // The differences of integers are taken where they fit.
  const auto number = [](const Tensor& x) {
    return is_floating(x.dtype()) ? x : raw::to(x, DType::f64);
  };
  const Tensor x = number(a), y = number(b);
  const Tensor difference = raw::abs(raw::sub(x, y));
  const Tensor allowed = raw::add(raw::abs(raw::mul(y, rtol)), atol);
  const Tensor near =
      raw::logical_and(raw::le(difference, allowed), raw::lt(difference, kInfinity));
  const Tensor close = raw::logical_or(same, near);
  return equal_nan ? raw::logical_or(close, raw::logical_and(isnan(a), isnan(b))) : close;
}

bool allclose(const Tensor& a, const Tensor& b, double rtol, double atol, bool equal_nan) {
  return raw::all(isclose(a, b, rtol, atol, equal_nan)).item<bool>();
}

}  // namespace weft
