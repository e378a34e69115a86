#include "weft/autograd/loss.h"

#include "weft/autograd/autocast.h"
#include "weft/autograd/by_parts.h"
#include "weft/autograd/differentiable.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/indexing.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/softmax.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/log.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft {

using autograd::autocast;
using autograd::autocasts;
using autograd::CastPolicy;
using autograd::creates_graph;
using autograd::DifferentiableNode;
using autograd::Gradients;
using autograd::record;
using autograd::recording;
using autograd::SavedTensor;

namespace {

class CrossEntropyNode final : public DifferentiableNode {
 public:
  CrossEntropyNode(const Tensor& logits, const Tensor& target,
                   const raw::CrossEntropyResult& result, const CrossEntropyParams& params)
      : DifferentiableNode("cross_entropy"), params_(params) {
    add_input(logits);
    target_ = save(target);
    // They may stand for the logits: a constant added to a row changes neither loss nor gradient.
    log_probs_ = save_copy(result.log_probs, 0);
    count_ = save(result.count);
  }
  void apply(Gradients& grads) override {
    if (!grads.wants(0)) return;
    const Tensor log_probs = log_probs_.get(*this), target = target_.get(*this);
    if (creates_graph()) return by_parts(grads, log_probs, target);
    grads.set(
        0, raw::cross_entropy_backward(grads.y(), log_probs, target, count_.get(*this), params_));
  }

 private:
  void by_parts(Gradients& grads, const Tensor& logits, const Tensor& target) const {
    // The probability that a row demands of each class; 0 in rows that do not count.
    const Tensor counts = raw::ne(target, static_cast<double>(params_.ignore_index));
    const Tensor chosen = raw::unsqueeze(raw::where(counts, target, zeros_like(target)), 1);
    const double spread = params_.label_smoothing / static_cast<double>(logits.shape(1));
    const Tensor wanted = raw::scatter_(full_like(logits, spread), 1, chosen,
                                        1 - params_.label_smoothing + spread, false);
    const Tensor asked = raw::mul(wanted, raw::to(raw::unsqueeze(counts, 1), logits.dtype()));
    const auto loss = [&](std::span<const Tensor> x) {
      // Rows that do not count have no gradient, whatever they hold.
      const Tensor rows = masked_fill(x[0], raw::logical_not(raw::unsqueeze(counts, 1)), 0);
      const Tensor of_rows = neg(sum(mul(log_softmax(rows, 1), asked), {1}));
      if (params_.reduction == Reduction::none) return of_rows;
      const Tensor whole = sum(of_rows);
      if (params_.reduction == Reduction::sum) return whole;
      return div(whole, raw::to(raw::clamp(count_.get(*this), 1), logits.dtype()));
    };
    grads.set(0, autograd::gradients_by_parts(grads, {&logits, 1}, loss)[0]);
  }
  void release_saved() override {
    target_.reset();
    log_probs_.reset();
    count_.reset();
  }
  CrossEntropyParams params_;
  SavedTensor target_, log_probs_, count_;
};

class MseNode final : public DifferentiableNode {
 public:
  MseNode(const Tensor& x, const Tensor& target, Reduction reduction)
      : DifferentiableNode("mse_loss"), reduction_(reduction) {
    add_input(x);
    add_input(target);
    x_ = save(x);
    target_ = save(target);
  }
  void apply(Gradients& grads) override {
    if (!grads.wants(0) && !grads.wants(1)) return;
    const Tensor x = x_.get(*this), target = target_.get(*this);
    Tensor grad;
    if (creates_graph()) {
      const double share = reduction_ == Reduction::mean ? static_cast<double>(x.numel()) : 1;
      grad = mul(mul(sub(x, target), grads.y()), 2 / share);
    } else {
      grad = raw::mse_loss_backward(grads.y(), x, target, reduction_);
    }
    if (grads.wants(0)) grads.set(0, grad);
    if (grads.wants(1)) grads.set(1, neg(grad));
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
