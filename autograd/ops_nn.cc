// Convolution, pooling, losses.
#include "weft/autograd/autocast.h"
#include "weft/autograd/deferred.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/ops.h"
#include "weft/core/base/error.h"

namespace weft {

using autograd::autocast;
using autograd::autocasts;
using autograd::CastPolicy;
using autograd::DeferredGradients;
using autograd::Gradients;
using autograd::Node;
using autograd::record;
using autograd::recording;
using autograd::SavedTensor;

namespace {

class ConvNode final : public Node {
 public:
  ConvNode(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2dParams& params)
      : Node(params.transposed ? "conv_transpose2d" : "conv2d"),
        params_(params),
        x_shape_(x.shape()),
        w_shape_(w.shape()),
        x_format_(x.is_channels_last() && !x.is_contiguous() ? MemoryFormat::nhwc
                                                             : MemoryFormat::nchw) {
    add_input(x);
    add_input(w);
    if (bias.defined()) add_input(bias);
    if (needs(1)) x_ = save(x);
    if (needs(0)) w_ = save(w);
  }
  void apply(Gradients& grads) override {
    const Tensor& grad = grads.y();
    const bool wants_bias = grads.inputs() > 2 && grads.wants(2);
    if (grads.wants(1)) {
      const auto gradients = [grad, x = x_.get(*this), shape = w_shape_, wants_bias,
                              params = params_] {
        return raw::conv2d_backward_weights(x, grad, shape, wants_bias, params);
      };
      if (wants_bias) {
        DeferredGradients::set_both(grads, *this, 1, gradients);
      } else {
        DeferredGradients::set(grads, *this, 1, [gradients] { return gradients().first; });
      }
    } else if (wants_bias) {
      grads.set(2, raw::sum(grad, {0, 2, 3}));
    }
    if (grads.wants(0)) {
      grads.set(0, raw::conv2d_backward_data(grad, w_.get(*this), x_shape_, params_, x_format_));
    }
  }

 private:
  void release_saved() override {
    x_.reset();
    w_.reset();
  }
  Conv2dParams params_;
  Shape x_shape_, w_shape_;
  MemoryFormat x_format_;
  SavedTensor x_, w_;
};

class MaxPoolNode final : public Node {
 public:
  MaxPoolNode(const Tensor& x, const Tensor& index, const Pool2dParams& params)
      : Node(params.adaptive ? "adaptive_max_pool2d" : "max_pool2d"),
        params_(params),
        x_shape_(x.shape()) {
    add_input(x);
    index_ = save(index);
  }
  void apply(Gradients& grads) override {
    if (!grads.wants(0)) return;
    grads.set(0, raw::max_pool2d_backward(grads.y(), index_.get(*this), x_shape_, params_));
  }

 private:
  void release_saved() override { index_.reset(); }
  Pool2dParams params_;
  Shape x_shape_;
  SavedTensor index_;
};

class AvgPoolNode final : public Node {
 public:
  AvgPoolNode(const Tensor& x, const AvgPool2dParams& params)
      : Node(params.adaptive ? "adaptive_avg_pool2d" : "avg_pool2d"),
        params_(params),
        x_shape_(x.shape()) {
    add_input(x);
  }
  void apply(Gradients& grads) override {
    if (!grads.wants(0)) return;
    grads.set(0, raw::avg_pool2d_backward(grads.y(), x_shape_, params_));
  }

 private:
  AvgPool2dParams params_;
  Shape x_shape_;
};

class CrossEntropyNode final : public Node {
 public:
  CrossEntropyNode(const Tensor& logits, const Tensor& target,
                   const raw::CrossEntropyResult& result, const CrossEntropyParams& params)
      : Node("cross_entropy"), params_(params) {
    add_input(logits);
    target_ = save(target);
    log_probs_ = save(result.log_probs);
    count_ = save(result.count);
  }
  void apply(Gradients& grads) override {
    if (!grads.wants(0)) return;
    grads.set(0, raw::cross_entropy_backward(grads.y(), log_probs_.get(*this), target_.get(*this),
                                             count_.get(*this), params_));
  }

 private:
  void release_saved() override {
    target_.reset();
    log_probs_.reset();
    count_.reset();
  }
  CrossEntropyParams params_;
  SavedTensor target_, log_probs_, count_;
};

class MseNode final : public Node {
 public:
  MseNode(const Tensor& x, const Tensor& target, Reduction reduction)
      : Node("mse_loss"), reduction_(reduction) {
    add_input(x);
    add_input(target);
    x_ = save(x);
    target_ = save(target);
  }
  void apply(Gradients& grads) override {
    if (!grads.wants(0) && !grads.wants(1)) return;
    const Tensor grad =
        raw::mse_loss_backward(grads.y(), x_.get(*this), target_.get(*this), reduction_);
    if (grads.wants(0)) grads.set(0, grad);
    if (grads.wants(1)) grads.set(1, raw::neg(grad));
  }

 private:
  void release_saved() override {
    x_.reset();
    target_.reset();
  }
  Reduction reduction_;
  SavedTensor x_, target_;
};

}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2dParams& params) {
  constexpr auto policy = CastPolicy::lower_precision;
  if (autocasts(policy, x, w, bias)) [[unlikely]]
    return conv2d(autocast(policy, x), autocast(policy, w), autocast(policy, bias), params);
  Tensor y = raw::conv2d(x, w, bias, params);
  return recording(x, w, bias) ? record<ConvNode>(std::move(y), x, w, bias, params) : y;
}

Tensor conv_transpose2d(const Tensor& x, const Tensor& w, const Tensor& bias, Conv2dParams params) {
  params.transposed = true;
  return conv2d(x, w, bias, params);
}

Tensor max_pool2d(const Tensor& x, const Pool2dParams& params) {
  auto [y, index] = raw::max_pool2d(x, params);
  return recording(x) ? record<MaxPoolNode>(std::move(y), x, index, params) : y;
}

Tensor adaptive_max_pool2d(const Tensor& x, const std::array<std::int64_t, 2>& size) {
  auto [y, index] = raw::adaptive_max_pool2d(x, size);
  return recording(x) ? record<MaxPoolNode>(std::move(y), x, index, Pool2dParams{.adaptive = true})
                      : y;
}

Tensor avg_pool2d(const Tensor& x, const AvgPool2dParams& params) {
  Tensor y = raw::avg_pool2d(x, params);
  return recording(x) ? record<AvgPoolNode>(std::move(y), x, params) : y;
}

Tensor adaptive_avg_pool2d(const Tensor& x, const std::array<std::int64_t, 2>& size) {
  Tensor y = raw::adaptive_avg_pool2d(x, size);
  return recording(x) ? record<AvgPoolNode>(std::move(y), x, AvgPool2dParams{.adaptive = true}) : y;
}

Tensor cross_entropy(const Tensor& logits, const Tensor& target, const CrossEntropyParams& params) {
  if (autocasts(CastPolicy::f32, logits)) [[unlikely]]
    return cross_entropy(autocast(CastPolicy::f32, logits), target, params);
  if (logits.defined() && target.defined() && logits.dim() > 2) {
    // [N,C,d1,..] -> [N d1 .., C]
    Shape expected = logits.shape();
    expected.erase(1);
    WEFT_CHECK(target.shape() == expected, Shape, "cross_entropy", "target: got ", target.shape(),
               ", logits ", logits.shape(), " need ", expected);
    Dims order{0};
    for (int i = 2; i < logits.dim(); ++i) order.push_back(i);
    order.push_back(1);
    const std::int64_t classes = logits.shape(1);
    const Tensor flat = logits.permute(order).reshape({numel(expected), classes});
    const Tensor loss = cross_entropy(flat, raw::reshape(target, {numel(expected)}), params);
    return params.reduction == Reduction::none ? loss.reshape(expected) : loss;
  }
  raw::CrossEntropyResult result = raw::cross_entropy(logits, target, params);
  if (!recording(logits)) return result.loss;
  return record<CrossEntropyNode>(result.loss, logits, target, result, params);
}

Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction) {
  if (autocasts(CastPolicy::f32, x, target)) [[unlikely]]
    return mse_loss(autocast(CastPolicy::f32, x), autocast(CastPolicy::f32, target), reduction);
  Tensor y = raw::mse_loss(x, target, reduction);
  return recording(x, target) ? record<MseNode>(std::move(y), x, target, reduction) : y;
}

}  // namespace weft
