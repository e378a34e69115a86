#include "weft/autograd/conv.h"

#include "weft/autograd/autocast.h"
#include "weft/autograd/autograd.h"
#include "weft/autograd/deferred.h"
#include "weft/autograd/description.h"
#include "weft/autograd/differentiable.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/internal.h"
#include "weft/autograd/recorded_rules.h"
#include "weft/autograd/reduce.h"
#include "weft/core/base/error.h"
#include "weft/tensor/ops.h"

namespace weft {

using autograd::autocast;
using autograd::autocasts;
using autograd::CastPolicy;
using autograd::check_defined;
using autograd::DeferredGradients;
using autograd::DifferentiableNode;
using autograd::Gradients;
using autograd::record;
using autograd::recording;
using autograd::SavedTensor;

namespace {

class ConvNode final : public DifferentiableNode {
 public:
  ConvNode(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2dParams& params,
           Activation then, const Tensor& y)
      : DifferentiableNode(name_of(params.transposed, then)),
        params_(params),
        x_shape_(x.shape()),
        w_shape_(w.shape()),
        x_format_(autograd::format_of(x)),
        w_format_(autograd::format_of(w)) {
    add_input(x);
    add_input(w);
    if (bias.defined()) add_input(bias);
    if (needs(1)) x_ = save(x);
    if (needs(0)) w_ = save(w);
    if (then == Activation::relu) y_ = save_output(y);
  }
  void apply(Gradients& grads) override {
    const bool wants_bias = grads.inputs() > 2 && grads.wants(2);
    const auto [grad, grad_bias] = before_relu(grads, wants_bias);
    if (autograd::creates_graph()) {
      if (grads.wants(1))
        grads.set(1,
                  autograd::conv_gradient_of_w(x_.get(*this), grad, w_shape_, params_, w_format_));
      if (wants_bias) grads.set(2, sum(grad, {0, 2, 3}));
    } else {
      set_parameters(grads, grad, grad_bias, wants_bias);
    }
    if (grads.wants(0)) {
      grads.set(0, autograd::conv_gradient_of_x(grad, w_.get(*this), x_shape_, params_, x_format_));
    }
  }
  void describe(autograd::Description& d) const override {
    d.op = name_of(params_.transposed, Activation::none);
    d.set(params_);
    d.ints["then_relu"] = {y_.defined()};
  }

 private:
  /// dL/d(the value before relu), and perhaps dL/dbias, if it is wanted.
  std::pair<Tensor, Tensor> before_relu(Gradients& grads, bool wants_bias) {
    if (wants_bias && y_.defined() && !grads.before_relu() && !autograd::creates_graph())
      return raw::conv2d_relu_backward(grads.take(), y_.get(*this));
    return {autograd::gradient_before_relu(grads, y_, *this), Tensor()};
  }
  void set_parameters(Gradients& grads, const Tensor& grad, const Tensor& grad_bias,
                      bool wants_bias) const {
    const auto puts_off = [&](int input) { return DeferredGradients::puts_off(*this, input); };
    const bool both = wants_bias && grads.wants(1) && puts_off(1) == puts_off(2);
    if (grads.wants(1)) {
      auto gradients = [grad, bias = both ? grad_bias : Tensor(), x = x_.get(*this),
                        shape = w_shape_, sums = both && !grad_bias.defined(), params = params_,
                        format = w_format_]() mutable {
        auto made = raw::conv2d_backward_weights(x, grad, shape, sums, params, format);
        if (!sums) made.second = std::move(bias);
        return made;
      };
      if (both) return DeferredGradients::set_both(grads, *this, 1, std::move(gradients));
      DeferredGradients::set(grads, *this, 1, [gradients]() mutable { return gradients().first; });
    }
    if (wants_bias) {
      DeferredGradients::set(grads, *this, 2, [grad, bias = grad_bias]() mutable {
        return bias.defined() ? std::move(bias) : raw::sum(grad, {0, 2, 3});
      });
    }
  }
  static const char* name_of(bool transposed, Activation then) {
    if (then == Activation::relu) return transposed ? "conv_transpose2d_relu" : "conv2d_relu";
    return transposed ? "conv_transpose2d" : "conv2d";
  }
  void release_saved() override {
    x_.reset();
    w_.reset();
    y_.reset();
  }
  Conv2dParams params_;
  Shape x_shape_, w_shape_;
  MemoryFormat x_format_, w_format_;
  SavedTensor x_, w_, y_;
};

/// x, or a copy in channels last if w has them: cuDNN would make it for the forward pass, and for
/// w's gradient again.
Tensor beside(const Tensor& w, const Tensor& x) {
  if (!x.defined() || !x.device().is_cuda() || !recording(w) || x.dim() != 4 ||
      x.is_channels_last() || autograd::format_of(w) == MemoryFormat::nchw)
    return x;
  const Tensor copy = raw::contiguous(x, MemoryFormat::nhwc);
  autograd::record_copy("contiguous", copy, x);
  return copy;
}

}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2dParams& params,
              Activation then) {
  if (x.defined() && x.dim() == 3) return conv2d(x.unsqueeze(0), w, bias, params, then).squeeze(0);
  constexpr auto policy = CastPolicy::lower_precision;
  if (autocasts(policy, x, w, bias)) [[unlikely]]
    return conv2d(autocast(policy, x), autocast(policy, w), autocast(policy, bias), params, then);
  const Tensor read = beside(w, x);
  Tensor y = raw::conv2d(read, w, bias, params, then);
  return recording(read, w, bias) ? record<ConvNode>(y, read, w, bias, params, then, y) : y;
}

Tensor conv_transpose2d(const Tensor& x, const Tensor& w, const Tensor& bias, Conv2dParams params,
                        Activation then) {
  params.transposed = true;
  return conv2d(x, w, bias, params, then);
}

Tensor conv1d(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv1dParams& params) {
  check_defined("conv1d", "x", x);
  check_defined("conv1d", "w", w);
  WEFT_CHECK((x.dim() == 3 || x.dim() == 2) && w.dim() == 3, Shape, "conv1d",
             "needs x [N,C,L] or [C,L] and w [K,C/groups,R], got ", x.shape(), " and ", w.shape());
  const Conv2dParams of_rows{.stride = {1, params.stride},
                             .padding = {0, params.padding},
                             .dilation = {1, params.dilation},
                             .groups = params.groups};
  return conv2d(x.unsqueeze(-2), w.unsqueeze(2), bias, of_rows).squeeze(-2);
}

}  // namespace weft
