// The derivatives of the element-wise operations, on the tape.
#include <numbers>

#include "weft/autograd/differentiable.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/indexing.h"
#include "weft/autograd/recorded_rules.h"
#include "weft/core/base/error.h"
#include "weft/kernels/functors.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::autograd {

namespace {

constexpr double kDensity = std::numbers::inv_sqrtpi * std::numbers::sqrt2 / 2;  // 1 / sqrt(2 pi)

Tensor nothing(const Tensor& g) { return zeros(g.shape(), {g.dtype(), g.device()}); }
Tensor number(double value, const Tensor& like) {
  return scalar(value, {like.dtype(), like.device()});
}
// `factor` where the condition holds, else 1 (or `other`): a constant of the tape.
Tensor choose(const Tensor& condition, const Tensor& g, double factor, double other = 1) {
  return raw::where(condition, number(factor, g), number(other, g));
}
Tensor zero_where(const Tensor& condition, const Tensor& g) { return masked_fill(g, condition, 0); }

Tensor gelu_slope(const Tensor& x) {
  const Tensor cdf = mul(add(erf(mul(x, std::numbers::sqrt2 / 2)), 1), 0.5);
  return add(cdf, mul(x, mul(exp(mul(square(x), -0.5)), kDensity)));
}

Tensor gelu_tanh_slope(const Tensor& x) {
  using functor::kGeluCubic, functor::kGeluScale;
  const Tensor squared = square(x);
  const Tensor t = tanh(mul(mul(x, add(mul(squared, kGeluCubic), 1)), kGeluScale));
  const Tensor inner = mul(add(mul(squared, 3 * kGeluCubic), 1), kGeluScale);
  return add(mul(add(t, 1), 0.5), mul(mul(x, mul(sub(1, square(t)), inner)), 0.5));
}

Tensor silu_slope(const Tensor& x) {
  const Tensor y = sigmoid(x);
  return mul(y, add(mul(x, sub(1, y)), 1));
}

// x^2 / (2a) where |x| < a, else |x| - a/2.
Tensor smooth_l1_gradient(const Tensor& g, const Tensor& x, double a) {
  const Tensor outside = mul(g, raw::sign(x));
  if (a == 0) return outside;
  return where(raw::ge(raw::abs(x), a), outside, div(mul(g, x), a));
}

}  // namespace

Tensor unary_gradient(UnaryOp op, const UnaryParams& params, const Tensor& g, const Tensor& s) {
  const double a = params.a, b = params.b;
  switch (op) {
    case UnaryOp::neg:
    case UnaryOp::rsub_scalar: return neg(g);
    case UnaryOp::add_scalar: return g;
    case UnaryOp::mul_scalar: return mul(g, a);
    case UnaryOp::abs: return mul(g, raw::sign(s));
    case UnaryOp::sign:
    case UnaryOp::floor:
    case UnaryOp::ceil:
    case UnaryOp::round:
    case UnaryOp::trunc: return nothing(g);
    case UnaryOp::square: return mul(mul(s, g), 2);
    case UnaryOp::sqrt: return div(g, mul(s, 2));
    case UnaryOp::rsqrt: return mul(mul(g, -0.5), mul(s, square(s)));
    case UnaryOp::reciprocal: return neg(mul(g, square(s)));
    case UnaryOp::exp: return mul(g, s);
    case UnaryOp::log: return div(g, s);
    case UnaryOp::log1p: return div(g, add(s, 1));
    case UnaryOp::expm1: return mul(g, add(s, 1));
    case UnaryOp::erf: return mul(g, mul(exp(neg(square(s))), 2 * std::numbers::inv_sqrtpi));
    case UnaryOp::tan: return mul(g, add(square(s), 1));
    case UnaryOp::sin: return mul(g, cos(s));
    case UnaryOp::cos: return neg(mul(g, sin(s)));
    case UnaryOp::tanh: return mul(g, sub(1, square(s)));
    case UnaryOp::sigmoid: return mul(g, mul(s, sub(1, s)));
    case UnaryOp::relu: return zero_where(raw::le(s, 0.0), g);
    case UnaryOp::gelu: return mul(g, gelu_slope(s));
    case UnaryOp::gelu_tanh: return mul(g, gelu_tanh_slope(s));
    case UnaryOp::log_sigmoid: return mul(g, sigmoid(neg(s)));
    case UnaryOp::silu: return mul(g, silu_slope(s));
    case UnaryOp::rdiv_scalar: return neg(mul(g, div(div(a, s), s)));
    case UnaryOp::pow_scalar: return a == 0 ? nothing(g) : mul(g, mul(pow(s, a - 1), a));
    case UnaryOp::leaky_relu: return mul(g, choose(raw::gt(s, 0.0), g, 1, a));
    case UnaryOp::elu: {
      // exp of the positive side, where it may overflow, is not used.
      const Tensor positive = raw::gt(s, 0.0);
      return where(positive, g, mul(g, mul(exp(zero_where(positive, s)), a)));
    }
    case UnaryOp::softplus: return where(raw::gt(raw::mul(s, a), b), g, mul(g, sigmoid(mul(s, a))));
    case UnaryOp::smooth_l1: return smooth_l1_gradient(g, s, a);
    case UnaryOp::clamp:
      return zero_where(raw::logical_not(raw::logical_and(raw::ge(s, a), raw::le(s, b))), g);
  }
  WEFT_THROW(Internal, "unary_gradient", "no such operation");
}

Tensor gradient_before_relu(Gradients& grads, const SavedTensor& y, const Node& node) {
  if (!y.defined()) return grads.y();
  if (grads.before_relu()) {
    y.get(node);  // refuses a y that was changed
    return grads.take();
  }
  return creates_graph() ? unary_gradient(UnaryOp::relu, {}, grads.y(), y.get(node))
                         : raw::unary_backward(UnaryOp::relu, grads.take(), y.get(node));
}

Tensor binary_gradient(BinaryOp op, bool of_b, const Tensor& g, const Tensor& a, const Tensor& b) {
  switch (op) {
    case BinaryOp::add: return g;
    case BinaryOp::sub: return of_b ? neg(g) : g;
    case BinaryOp::mul: return mul(g, of_b ? a : b);
    case BinaryOp::div: return of_b ? neg(mul(g, div(div(a, b), b))) : div(g, b);
    case BinaryOp::pow: {
      if (!of_b) {
        const Tensor flat = raw::eq(b, 0.0);
        return zero_where(flat, mul(g, mul(b, pow(a, sub(b, 1)))));
      }
      const Tensor flat = raw::logical_and(raw::eq(a, 0.0), raw::ge(b, 0.0));
      return zero_where(flat, mul(g, mul(pow(a, b), log(masked_fill(a, raw::eq(a, 0.0), 1)))));
    }
    case BinaryOp::maximum:
    case BinaryOp::minimum: {
      // As in the functors, a comparison with NaN is false: then both get g.
      const bool largest = op == BinaryOp::maximum;
      const Tensor lost = largest == of_b ? raw::lt(b, a) : raw::lt(a, b);
      const Tensor share = choose(raw::eq(a, b), g, 0.5);
      return zero_where(lost, mul(g, share));
    }
    case BinaryOp::remainder: return of_b ? neg(mul(g, raw::floor_divide(a, b))) : g;
    case BinaryOp::floor_divide: return nothing(g);
  }
  WEFT_THROW(Internal, "binary_gradient", "no such operation");
}

}  // namespace weft::autograd
