#include "weft/autograd/loss.h"

#include "weft/autograd/autocast.h"
#include "weft/autograd/graph.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/log.h"
#include "weft/tensor/elementwise.h"
#include "weft/tensor/ops.h"

namespace weft {

using autograd::autocast;
using autograd::autocasts;
using autograd::CastPolicy;
using autograd::Gradients;
using autograd::Node;
using autograd::record;
using autograd::recording;
using autograd::SavedTensor;

namespace {

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
  if (x.defined() && target.defined() && x.shape() != target.shape()) {
    const auto [wide_x, wide_target] = autograd::broadcast_pair("mse_loss", x, target);
    return mse_loss(wide_x, wide_target, reduction);
  }
  Tensor y = raw::mse_loss(x, target, reduction);
  return recording(x, target) ? record<MseNode>(std::move(y), x, target, reduction) : y;
}

namespace autograd {

std::pair<Tensor, Tensor> broadcast_pair(const char* op, const Tensor& x, const Tensor& target) {
  if (x.shape() == target.shape()) return {x, target};
  const Shape shape = broadcast_shapes(x.shape(), target.shape(), op);
  log_warning(detail::concat(op, ": target has shape ", target.shape(), ", x ", x.shape(),
                             "; both are broadcast to ", shape));
  return {x.expand(shape), target.expand(shape)};
}

}  // namespace autograd

}  // namespace weft
