#include "weft/autograd/matmul.h"

#include "weft/autograd/arithmetic.h"
#include "weft/autograd/autocast.h"
#include "weft/autograd/deferred.h"
#include "weft/autograd/description.h"
#include "weft/autograd/differentiable.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/internal.h"
#include "weft/autograd/operand.h"
#include "weft/autograd/recorded_rules.h"
#include "weft/autograd/reduce.h"
#include "weft/core/base/error.h"
#include "weft/tensor/elementwise.h"
#include "weft/tensor/ops.h"

namespace weft {

using autograd::autocast;
using autograd::autocasts;
using autograd::CastPolicy;
using autograd::check_defined;
using autograd::DeferredGradients;
using autograd::DifferentiableNode;
using autograd::Gradients;
using autograd::Operand;
using autograd::record;
using autograd::recording;
using autograd::SavedTensor;

namespace {

Tensor transposed(const Tensor& x) { return x.transpose(-2, -1); }

// [..,K] as one matrix [rows,K]; K may be 0.
Tensor rows(const Tensor& x) {
  if (x.dim() == 2) return x;
  std::int64_t rows = 1;
  for (int i = 0; i < x.dim() - 1; ++i) rows *= x.shape()[i];
  return x.reshape({rows, x.shape(-1)});
}

class MatmulNode final : public DifferentiableNode {
 public:
  MatmulNode(const Tensor& a, const Tensor& b)
      : DifferentiableNode("matmul"), dtype_(a.dtype()), a_info_(a), b_info_(b) {
    add_input(a);
    add_input(b);
    if (needs(1)) a_ = save(a);
    if (needs(0)) b_ = save(b);
  }
  void apply(Gradients& grads) override {
    const Tensor grad = grads.y().to(dtype_);
    if (grads.wants(0)) {
      grads.set(0, a_info_.fit(matmul(grad, transposed(b_.get(*this)))));
    }
    if (!grads.wants(1)) return;
    DeferredGradients::set(grads, *this, 1, [grad, a = a_.get(*this), info = b_info_] {
      // If b is one matrix for a whole batch, one product also sums over the batch.
      const bool shared = info.shape().size() == 2 && a.dim() == grad.dim();
      return info.fit(shared ? matmul(transposed(rows(a)), rows(grad))
                             : matmul(transposed(a), grad));
    });
  }

 private:
  void release_saved() override {
    a_.reset();
    b_.reset();
  }
  DType dtype_;  // of a and b
  Operand a_info_, b_info_;
  SavedTensor a_, b_;
};

// x [..,in], w [out,in], bias [out] -> y [..,out]
class LinearNode final : public DifferentiableNode {
 public:
  LinearNode(const Tensor& x, const Tensor& w, const Tensor& bias, Activation then, const Tensor& y,
             const Tensor& mask)
      : DifferentiableNode(then == Activation::relu ? "linear_relu" : "linear"),
        x_shape_(x.shape()) {
    add_input(x);
    add_input(w);
    if (bias.defined()) add_input(bias);
    if (needs(1)) x_ = save(x);
    if (needs(0)) w_ = save(w);
    if (then == Activation::relu) y_ = save_output(y);
    if (mask.defined()) mask_ = save(mask);
  }
  void apply(Gradients& grads) override {
    const Tensor grad = rows(autograd::gradient_before_relu(grads, y_, *this));
    if (grads.wants(0)) set_gradient_of_x(grads, grad);
    const bool wants_bias = grads.inputs() > 2 && grads.wants(2);
    const auto put_off = [&](int input) { return DeferredGradients::puts_off(*this, input); };
    if (grads.wants(1) && wants_bias && !autograd::creates_graph() && put_off(1) == put_off(2)) {
      DeferredGradients::set_both(grads, *this, 1, [grad, x = x_.get(*this)] {
        return raw::linear_backward_weights(rows(x), grad);
      });
      return;
    }
    if (grads.wants(1)) {
      DeferredGradients::set(
          grads, *this, 1, [grad, x = x_.get(*this)] { return matmul(transposed(grad), rows(x)); });
    }
    if (wants_bias) {
      DeferredGradients::set(grads, *this, 2, [grad] { return sum(grad, {0}); });
    }
  }
  Tensor relu_mask() const override { return mask_.defined() ? mask_.get(*this) : Tensor(); }
  void describe(autograd::Description& d) const override {
    d.op = "linear";
    d.ints["then_relu"] = {y_.defined()};
  }

 private:
  void set_gradient_of_x(Gradients& grads, const Tensor& grad) {
    const Tensor w = w_.get(*this);
    const Tensor mask = grads.relu_mask(0);
    if (!mask.defined()) return grads.set(0, matmul(grad, w).reshape(x_shape_));
    const auto [grad_x, masked] = raw::matmul_where(grad, w, mask);
    masked ? grads.set_past_relu(0, grad_x.reshape(x_shape_))
           : grads.set(0, grad_x.reshape(x_shape_));
  }
  void release_saved() override {
    x_.reset();
    w_.reset();
    y_.reset();
    mask_.reset();
  }
  Shape x_shape_;
  SavedTensor x_, w_, y_, mask_;
};

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) {
  const auto is_vector = [](const Tensor& x) { return x.defined() && x.dim() == 1; };
  if ((is_vector(a) || is_vector(b)) && recording(a, b)) [[unlikely]] {
    // Makes a a row and b a column; the tape records both steps.
    const Tensor y = matmul(is_vector(a) ? a.unsqueeze(0) : a, is_vector(b) ? b.unsqueeze(1) : b);
    const Tensor rows = is_vector(b) ? y.squeeze(-1) : y;
    return is_vector(a) ? rows.squeeze(is_vector(b) ? -1 : -2) : rows;
  }
  constexpr auto policy = CastPolicy::lower_precision;
  if (autocasts(policy, a, b)) [[unlikely]]
    return matmul(autocast(policy, a), autocast(policy, b));
  Tensor y = raw::matmul(a, b);
  return recording(a, b) ? record<MatmulNode>(std::move(y), a, b) : y;
}

Tensor matmul(const Tensor& a, const Tensor& b, DType out_dtype) {
  WEFT_CHECK(!a.defined() || !b.defined() || (a.dim() > 1 && b.dim() > 1), Shape, "matmul",
             "with out_dtype it needs matrices, got a ", a.shape(), ", b ", b.shape());
  Tensor y = raw::matmul(a, b, out_dtype);
  return recording(a, b) ? record<MatmulNode>(std::move(y), a, b) : y;
}

Tensor linear(const Tensor& x, const Tensor& w, const Tensor& bias, Activation then) {
  constexpr auto policy = CastPolicy::lower_precision;
  if (autocasts(policy, x, w, bias)) [[unlikely]]
    return linear(autocast(policy, x), autocast(policy, w), autocast(policy, bias), then);
  if (!recording(x, w, bias)) return raw::linear(x, w, bias, then);
  auto [y, mask] = then == Activation::relu ? raw::linear_relu(x, w, bias)
                                            : std::pair(raw::linear(x, w, bias), Tensor());
  return record<LinearNode>(y, x, w, bias, then, y, mask);
}

Tensor dot(const Tensor& a, const Tensor& b) {
  check_defined("dot", "a", a);
  check_defined("dot", "b", b);
  WEFT_CHECK(a.dim() == 1 && b.dim() == 1, Shape, "dot", "needs two vectors, got a ", a.shape(),
             ", b ", b.shape());
  WEFT_CHECK(a.shape() == b.shape(), Shape, "dot", "lengths: a has ", a.shape()[0], ", b has ",
             b.shape()[0]);
  WEFT_CHECK(a.dtype() == b.dtype(), Dtype, "dot", "dtype: a is ", a.dtype(), ", b is ", b.dtype());
  // Unlike the matmul of two vectors, PyTorch's autocast leaves dot as it is.
  const autograd::Autocast off(a.device().type, {.enabled = false, .cache_enabled = false});
  if (is_floating(a.dtype())) return matmul(a, b);
  return raw::to(raw::sum(raw::mul(a, b)), a.dtype());
}

Tensor outer(const Tensor& a, const Tensor& b) {
  check_defined("outer", "a", a);
  check_defined("outer", "b", b);
  WEFT_CHECK(a.dim() == 1 && b.dim() == 1, Shape, "outer", "needs two vectors, got a ", a.shape(),
             ", b ", b.shape());
  return mul(a.unsqueeze(1), b);
}

}  // namespace weft
