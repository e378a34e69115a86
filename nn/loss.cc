#include "weft/nn/loss.h"

#include "weft/autograd/autocast.h"
#include "weft/core/error.h"

namespace weft::nn {

using autograd::autocast;
using autograd::autocasts;
using autograd::CastPolicy;

namespace {

void check_target(const char* op, const Tensor& x, const Tensor& target) {
  WEFT_CHECK(is_floating(x.dtype()), Dtype, op, "x: got ", x.dtype(),
             ", expected a floating dtype");
  WEFT_CHECK(x.dtype() == target.dtype(), Dtype, op, "target: got ", target.dtype(), ", x is ",
             x.dtype());
  WEFT_CHECK(x.shape() == target.shape(), Shape, op, "target: got ", target.shape(), ", x is ",
             x.shape());
}

Tensor reduce(const Tensor& losses, Reduction reduction) {
  switch (reduction) {
    case Reduction::none: return losses;
    case Reduction::mean: return mean(losses);
    case Reduction::sum: break;
  }
  return sum(losses);
}

}  // namespace

Tensor nll_loss(const Tensor& log_probs, const Tensor& target, std::int64_t ignore_index,
                Reduction reduction) {
  if (autocasts(CastPolicy::f32, log_probs)) {
    return nll_loss(autocast(CastPolicy::f32, log_probs), target, ignore_index, reduction);
  }
  WEFT_CHECK(is_floating(log_probs.dtype()), Dtype, "nll_loss", "log_probs: got ",
             log_probs.dtype(), ", expected a floating dtype");
  WEFT_CHECK(target.dtype() == DType::i64, Dtype, "nll_loss", "target: got ", target.dtype(),
             ", expected i64 class numbers; convert it with to(dtype)");
  WEFT_CHECK(log_probs.dim() >= 2, Shape, "nll_loss", "log_probs: got ", log_probs.shape(),
             ", expected [N,C] or [N,C,d1,...]");
  Shape expected = log_probs.shape();
  expected.erase(1);
  WEFT_CHECK(target.shape() == expected, Shape, "nll_loss", "target: got ", target.shape(),
             ", log_probs ", log_probs.shape(), " need ", expected);

  const Tensor counts = raw::ne(target, static_cast<double>(ignore_index));
  const TensorOptions like(log_probs.dtype(), log_probs.device());
  const Tensor classes = raw::where(counts, target, scalar(0, {DType::i64, target.device()}));
  const Tensor picked = gather(log_probs, 1, raw::unsqueeze(classes, 1)).squeeze(1);
  const Tensor losses = where(counts, -picked, scalar(0, like));
  if (reduction == Reduction::none) return losses;
  const Tensor total = sum(losses);
  if (reduction == Reduction::sum) return total;
  return div(total, raw::to(raw::sum(counts), log_probs.dtype()));
}

Tensor bce_with_logits(const Tensor& x, const Tensor& target, Reduction reduction,
                       const Tensor& pos_weight) {
  if (autocasts(CastPolicy::f32, x, target, pos_weight)) {
    return bce_with_logits(autocast(CastPolicy::f32, x), autocast(CastPolicy::f32, target),
                           reduction, autocast(CastPolicy::f32, pos_weight));
  }
  check_target("bce_with_logits", x, target);
  Tensor of_positive = log_sigmoid(x);
  if (pos_weight.defined()) {
    WEFT_CHECK(broadcast_shapes(pos_weight.shape(), x.shape(), "bce_with_logits") == x.shape(),
               Shape, "bce_with_logits", "pos_weight: got ", pos_weight.shape(),
               ", which does not broadcast to x ", x.shape());
    of_positive = (1.0 + (pos_weight - 1.0) * target) * of_positive;
  }
  return reduce((1.0 - target) * x - of_positive, reduction);
}

Tensor l1_loss(const Tensor& x, const Tensor& target, Reduction reduction) {
  if (autocasts(CastPolicy::f32, x, target)) {
    return l1_loss(autocast(CastPolicy::f32, x), autocast(CastPolicy::f32, target), reduction);
  }
  check_target("l1_loss", x, target);
  return reduce(abs(x - target), reduction);
}

Tensor smooth_l1_loss(const Tensor& x, const Tensor& target, Reduction reduction, double beta) {
  if (autocasts(CastPolicy::f32, x, target)) {
    return smooth_l1_loss(autocast(CastPolicy::f32, x), autocast(CastPolicy::f32, target),
                          reduction, beta);
  }
  check_target("smooth_l1_loss", x, target);
  return reduce(smooth_l1(x - target, beta), reduction);
}

}  // namespace weft::nn
