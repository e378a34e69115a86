#include "weft/nn/loss.h"

#include <limits>
#include <utility>

#include "weft/autograd/autocast.h"
#include "weft/autograd/by_parts.h"
#include "weft/autograd/differentiable.h"
#include "weft/autograd/function.h"
#include "weft/autograd/graph.h"
#include "weft/autograd/ops.h"
#include "weft/core/base/error.h"
#include "weft/tensor/ops.h"

namespace weft::nn {

using autograd::autocast;
using autograd::autocasts;
using autograd::CastPolicy;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

void check_dtypes(const char* op, const Tensor& x, const Tensor& target) {
  WEFT_CHECK(is_floating(x.dtype()), Dtype, op, "x: got ", x.dtype(),
             ", expected a floating dtype");
  WEFT_CHECK(x.dtype() == target.dtype(), Dtype, op, "target: got ", target.dtype(), ", x is ",
             x.dtype());
}

void check_target(const char* op, const Tensor& x, const Tensor& target) {
  check_dtypes(op, x, target);
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

// The losses of the elements times `weight`, which may be undefined.
Tensor weighted(const char* op, const Tensor& losses, const Tensor& weight) {
  if (!weight.defined()) return losses;
  WEFT_CHECK(broadcast_shapes(weight.shape(), losses.shape(), op) == losses.shape(), Shape, op,
             "weight: got ", weight.shape(), ", which does not broadcast to x ", losses.shape());
  return losses * weight.to(losses.dtype());
}

Tensor zero_like(const Tensor& x) { return scalar(0, {x.dtype(), x.device()}); }

// x - target, broadcast to one shape, for losses that depend only on the difference.
Tensor difference(const char* op, const Tensor& x, const Tensor& target) {
  check_dtypes(op, x, target);
  const auto [wide_x, wide_target] = autograd::broadcast_pair(op, x, target);
  return wide_x - wide_target;
}

// x [N,C,..] gives the number of classes.
void check_class_weights(const char* op, const Tensor& weight, const Tensor& x) {
  WEFT_CHECK(weight.dtype() == x.dtype(), Dtype, op, "weight: got ", weight.dtype(), ", needs ",
             x.dtype());
  WEFT_CHECK(weight.device() == x.device(), Device, op, "weight is on ", weight.device(),
             ", the classes on ", x.device());
  WEFT_CHECK(weight.shape() == Shape{x.shape(1)}, Shape, op, "weight: got ", weight.shape(),
             ", expected [", x.shape(1), "], one for each class");
}

// weight [C], to be multiplied with x [N,C,..].
Tensor along_classes(const Tensor& weight, const Tensor& x) {
  Shape shape = Shape::filled(x.dim() - 1, 1);
  shape[0] = x.shape(1);
  return raw::reshape(weight, shape);
}

// weight[target], and 0 for ignored targets.
Tensor weights_of(const char* op, const Tensor& weight, const Tensor& target,
                  std::int64_t ignore_index, const Tensor& x) {
  check_class_weights(op, weight, x);
  const Tensor counts = raw::ne(target, static_cast<double>(ignore_index));
  const Tensor classes = raw::where(counts, target, zero_like(target));
  const Tensor rows = raw::embedding(classes, raw::unsqueeze(weight, 1));
  return raw::where(counts, raw::squeeze(rows, -1), zero_like(rows));
}

// Whether the classes are those of one sample, [C], without a batch.
bool is_single(const Tensor& classes, const Tensor& target) {
  return classes.defined() && target.defined() && classes.dim() == 1;
}

// bf16 is computed in f32 and rounded once, at the end.
DType wide(DType dtype) { return dtype == DType::bf16 ? DType::f32 : dtype; }

// The largest finite number of f32 or f64.
double largest(DType dtype) {
  return dtype == DType::f32 ? static_cast<double>(std::numeric_limits<float>::max())
                             : std::numeric_limits<double>::max();
}

Tensor reduce_weighted(const Tensor& losses, const Tensor& weights, Reduction reduction) {
  if (reduction == Reduction::none) return losses;
  const DType computed = wide(losses.dtype());
  Tensor total = sum(losses.to(computed));
  if (reduction == Reduction::mean) total = div(total, raw::sum(raw::to(weights, computed)));
  return total.to(losses.dtype());
}

void check_smoothing(double smoothing) {
  WEFT_CHECK(smoothing >= 0 && smoothing <= 1, InvalidArgument, "cross_entropy",
             "label_smoothing: got ", smoothing, ", expected 0 to 1");
}

// Cross-entropy with targets that are probabilities of the classes, in logits' shape.
Tensor of_probabilities(const Tensor& logits, const Tensor& target,
                        const CrossEntropyOptions& options) {
  const char* op = "cross_entropy";
  WEFT_CHECK(target.shape() == logits.shape(), Dtype, op, "target: got ", target.dtype(), " ",
             target.shape(),
             ", expected i64 class numbers, or probabilities in the shape of logits ",
             logits.shape());
  check_dtypes(op, logits, target);
  WEFT_CHECK(logits.dim() >= 2, Shape, op, "logits: got ", logits.shape(),
             ", expected [N,C] or [N,C,d1,...]");
  check_smoothing(options.label_smoothing);
  const Tensor& weight = options.weight;
  if (weight.defined()) check_class_weights(op, weight, logits);
  const DType computed = wide(logits.dtype());
  const auto classes = static_cast<double>(logits.shape(1));
  Tensor shares = target.to(computed);
  if (options.label_smoothing > 0) {
    shares = shares * (1 - options.label_smoothing) + options.label_smoothing / classes;
  }
  if (weight.defined()) shares = shares * raw::to(along_classes(weight, logits), computed);
  const Tensor losses = -sum(log_softmax(logits.to(computed), 1) * shares, {1});
  Tensor loss = reduce(losses, options.reduction);
  // As PyTorch: no classes are no elements, whose mean is NaN.
  if (classes == 0 && options.reduction == Reduction::mean) loss = loss * kNaN;
  return loss.to(logits.dtype());
}

}  // namespace

Tensor cross_entropy(const Tensor& logits, const Tensor& target,
                     const CrossEntropyOptions& options) {
  if (is_single(logits, target)) {
    const Tensor loss = cross_entropy(logits.unsqueeze(0), target.unsqueeze(0), options);
    return options.reduction == Reduction::none ? loss.squeeze(0) : loss;
  }
  const Tensor& weight = options.weight;
  CrossEntropyParams params{.ignore_index = options.ignore_index,
                            .label_smoothing = options.label_smoothing,
                            .reduction = options.reduction};
  const bool shares = target.defined() && is_floating(target.dtype());
  if (!weight.defined() && !shares) return weft::cross_entropy(logits, target, params);
  if (autocasts(CastPolicy::f32, logits, weight, shares ? target : Tensor())) {
    CrossEntropyOptions cast = options;
    cast.weight = autocast(CastPolicy::f32, weight);
    return cross_entropy(autocast(CastPolicy::f32, logits),
                         shares ? autocast(CastPolicy::f32, target) : target, cast);
  }
  if (shares) return of_probabilities(logits, target, options);
  const double smoothing = options.label_smoothing;
  check_smoothing(smoothing);
  params.label_smoothing = 0;
  params.reduction = Reduction::none;
  const Tensor plain = weft::cross_entropy(logits, target, params);
  const Tensor weights = weights_of("cross_entropy", weight, target, options.ignore_index, logits);
  Tensor losses = plain * weights;
  if (smoothing > 0) {
    const Tensor counts = raw::ne(target, static_cast<double>(options.ignore_index));
    // Rows that do not count have no gradient, whatever they hold.
    const Tensor ignored = raw::logical_not(raw::unsqueeze(counts, 1));
    const Tensor rows = masked_fill(logits, ignored, 0);
    const Tensor of_all = sum(log_softmax(rows, 1) * along_classes(weight, logits), {1});
    const double share = smoothing / static_cast<double>(logits.shape(1));
    losses = losses * (1 - smoothing) - where(counts, of_all * share, zero_like(of_all));
  }
  return reduce_weighted(losses, weights, options.reduction);
}

Tensor nll_loss(const Tensor& log_probs, const Tensor& target, std::int64_t ignore_index,
                Reduction reduction, const Tensor& weight) {
  if (autocasts(CastPolicy::f32, log_probs, weight)) {
    return nll_loss(autocast(CastPolicy::f32, log_probs), target, ignore_index, reduction,
                    autocast(CastPolicy::f32, weight));
  }
  if (is_single(log_probs, target)) {
    const Tensor loss =
        nll_loss(log_probs.unsqueeze(0), target.unsqueeze(0), ignore_index, reduction, weight);
    return reduction == Reduction::none ? loss.squeeze(0) : loss;
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
  const Tensor classes = raw::where(counts, target, zero_like(target));
  const Tensor picked = gather(log_probs, 1, raw::unsqueeze(classes, 1)).squeeze(1);
  const Tensor losses = where(counts, -picked, zero_like(log_probs));
  if (!weight.defined()) {
    return reduce_weighted(losses, raw::to(counts, log_probs.dtype()), reduction);
  }
  const Tensor weights = weights_of("nll_loss", weight, target, ignore_index, log_probs);
  return reduce_weighted(losses * weights, weights, reduction);
}

namespace {

// The loss of each element, with PyTorch's rule for the gradient: the denominator of the slope is
// kept above 0, and the lower bound of the logarithms is ignored.
struct BinaryCrossEntropy : autograd::Function<BinaryCrossEntropy> {
  static constexpr bool nests_backward = false, differentiable_backward = true;
  static constexpr double kLeastLog = -100, kLeastVariance = 1e-12F;

  static Tensor forward(autograd::Context& context, const Tensor& x, const Tensor& target) {
    context.save_for_backward({x, target});
    const Tensor log_x = raw::clamp(raw::log(x), kLeastLog);
    const Tensor log_rest = raw::clamp(raw::log1p(raw::neg(x)), kLeastLog);
    return raw::sub(raw::mul(raw::sub(target, 1), log_rest), raw::mul(target, log_x));
  }
  static std::vector<Tensor> backward(autograd::Context& context, std::span<const Tensor> grads) {
    const Tensor x = context.saved(0), target = context.saved(1);
    std::vector<Tensor> of(2);
    if (context.needs_input_grad(0)) {
      const Tensor variance = clamp((1 - x) * x, kLeastVariance);
      of[0] = grads[0] * ((x - target) / variance);
    }
    if (context.needs_input_grad(1)) {
      of[1] = grads[0] * (log1p(-x) - log(x));
    }
    return of;
  }
};

// The loss of each element, (1 - t) x - (1 + (w - 1) t) log(sigmoid(x)) with w = pos_weight, or 1
// if that is undefined.
Tensor bce_of_logits(const Tensor& x, const Tensor& target, const Tensor& pos_weight) {
  Tensor of_positive = raw::log_sigmoid(x);
  if (pos_weight.defined()) {
    const Tensor more = raw::mul(raw::sub(pos_weight, 1), target);
    of_positive = raw::mul(raw::add(more, 1), of_positive);
  }
  return raw::sub(raw::mul(raw::sub(1, target), x), of_positive);
}

// A node of its own: by the formula the slope would be a difference of two numbers near 1.
class BceWithLogitsNode final : public autograd::DifferentiableNode {
 public:
  BceWithLogitsNode(const Tensor& x, const Tensor& target, const Tensor& pos_weight)
      : DifferentiableNode("bce_with_logits") {
    add_input(x);
    add_input(target);
    x_ = save(x);
    target_ = save(target);
    if (!pos_weight.defined()) return;
    add_input(pos_weight);
    pos_weight_ = save(pos_weight);
    is_weighted_ = true;
  }

  void apply(autograd::Gradients& grads) override {
    const Tensor x = x_.get(*this), target = target_.get(*this), &grad = grads.y();
    const Tensor weight = is_weighted_ ? pos_weight_.get(*this) : Tensor();
    if (autograd::creates_graph()) return by_parts(grads, {x, target, weight});
    if (grads.wants(0)) {
      // (1 - t) sigmoid(x) - w t sigmoid(-x): each term is accurate even if it is small.
      Tensor slope = raw::sigmoid(x);
      raw::binary_(BinaryOp::mul, slope, raw::sub(1, target));
      const Tensor down = is_weighted_ ? raw::mul(target, weight) : target;
      // The slope of log(sigmoid(x)) is sigmoid(-x).
      raw::binary_(BinaryOp::sub, slope, raw::unary_backward(UnaryOp::log_sigmoid, down, x));
      raw::binary_(BinaryOp::mul, slope, grad);
      grads.set(0, std::move(slope));
    }
    const bool of_weight = is_weighted_ && grads.wants(2);
    if (!grads.wants(1) && !of_weight) return;
    const Tensor log_p = raw::log_sigmoid(x);
    if (grads.wants(1)) {
      Tensor slope = raw::neg(x);
      if (is_weighted_) slope = raw::sub(slope, raw::mul(raw::sub(weight, 1), log_p));
      grads.set(1, raw::mul(grad, slope));
    }
    if (of_weight) {
      const Tensor each = raw::neg(raw::mul(grad, raw::mul(target, log_p)));
      grads.set(2, raw::sum_to(each, weight.shape()));
    }
  }

 private:
  static void by_parts(autograd::Gradients& grads, std::vector<Tensor> inputs) {
    inputs.resize(static_cast<std::size_t>(grads.inputs()));
    const auto loss = [](std::span<const Tensor> in) {
      Tensor of_positive = log_sigmoid(in[0]);
      if (in.size() > 2) of_positive = ((in[2] - 1) * in[1] + 1) * of_positive;
      return (1 - in[1]) * in[0] - of_positive;
    };
    const std::vector<Tensor> values = autograd::gradients_by_parts(grads, inputs, loss);
    for (std::size_t i = 0; i < values.size(); ++i) grads.set(static_cast<int>(i), values[i]);
  }
  void release_saved() override {
    x_.reset();
    target_.reset();
    pos_weight_.reset();
  }

  autograd::SavedTensor x_, target_, pos_weight_;
  bool is_weighted_ = false;
};

// Checks only where this needs no waiting: on CUDA the logarithms give NaN for such a value.
void check_probabilities(const char* name, const Tensor& x) {
  if (!x.device().is_cpu()) return;
  const Tensor values = raw::contiguous(x);
  dispatch_floating(x.dtype(), "bce_loss", [&]<class T>() {
    const T* const at = values.data<T>();
    const auto fits = [&](std::int64_t i) {
      const auto v = element_cast<accumulate_t<T>>(at[i]);
      return (v >= 0) & (v <= 1);
    };
    const std::int64_t n = values.numel();
    bool all = true;
    for (std::int64_t i = 0; i < n; ++i) all &= fits(i);
    for (std::int64_t i = 0; !all && i < n; ++i) {
      WEFT_CHECK(fits(i), InvalidArgument, "bce_loss", name, ": got ", element_cast<double>(at[i]),
                 " at position ", i, ", expected 0 to 1");
    }
  });
}

}  // namespace

Tensor bce_loss(const Tensor& x, const Tensor& target, Reduction reduction, const Tensor& weight) {
  if (autocasts(CastPolicy::f32, x, target)) {
    return bce_loss(autocast(CastPolicy::f32, x), autocast(CastPolicy::f32, target), reduction,
                    weight);
  }
  check_target("bce_loss", x, target);
  if (const DType computed = wide(x.dtype()); computed != x.dtype()) {
    return bce_loss(x.to(computed), target.to(computed), reduction, weight).to(x.dtype());
  }
  check_probabilities("x", x);
  check_probabilities("target", target);
  return reduce(weighted("bce_loss", BinaryCrossEntropy::apply(x, target), weight), reduction);
}

Tensor bce_with_logits(const Tensor& x, const Tensor& target, Reduction reduction,
                       const Tensor& pos_weight, const Tensor& weight) {
  if (autocasts(CastPolicy::f32, x, target, pos_weight)) {
    return bce_with_logits(autocast(CastPolicy::f32, x), autocast(CastPolicy::f32, target),
                           reduction, autocast(CastPolicy::f32, pos_weight), weight);
  }
  check_target("bce_with_logits", x, target);
  if (pos_weight.defined()) {
    WEFT_CHECK(broadcast_shapes(pos_weight.shape(), x.shape(), "bce_with_logits") == x.shape(),
               Shape, "bce_with_logits", "pos_weight: got ", pos_weight.shape(),
               ", which does not broadcast to x ", x.shape());
  }
  if (const DType computed = wide(x.dtype()); computed != x.dtype()) {
    const Tensor of_positive = pos_weight.defined() ? pos_weight.to(computed) : pos_weight;
    return bce_with_logits(x.to(computed), target.to(computed), reduction, of_positive, weight)
        .to(x.dtype());
  }
  const Tensor of_positive = pos_weight.defined() ? pos_weight.to(x.dtype()) : pos_weight;
  Tensor each = bce_of_logits(x, target, of_positive);
  if (autograd::recording(x, target, of_positive)) {
    each = autograd::record<BceWithLogitsNode>(std::move(each), x, target, of_positive);
  }
  return reduce(weighted("bce_with_logits", each, weight), reduction);
}

Tensor l1_loss(const Tensor& x, const Tensor& target, Reduction reduction) {
  if (autocasts(CastPolicy::f32, x, target)) {
    return l1_loss(autocast(CastPolicy::f32, x), autocast(CastPolicy::f32, target), reduction);
  }
  return reduce(abs(difference("l1_loss", x, target)), reduction);
}

Tensor smooth_l1_loss(const Tensor& x, const Tensor& target, Reduction reduction, double beta) {
  if (autocasts(CastPolicy::f32, x, target)) {
    return smooth_l1_loss(autocast(CastPolicy::f32, x), autocast(CastPolicy::f32, target),
                          reduction, beta);
  }
  return reduce(smooth_l1(difference("smooth_l1_loss", x, target), beta), reduction);
}

Tensor huber_loss(const Tensor& x, const Tensor& target, Reduction reduction, double delta) {
  WEFT_CHECK(delta > 0, InvalidArgument, "huber_loss", "delta: got ", delta,
             ", expected more than 0");
  if (autocasts(CastPolicy::f32, x, target)) {
    return huber_loss(autocast(CastPolicy::f32, x), autocast(CastPolicy::f32, target), reduction,
                      delta);
  }
  Tensor d = difference("huber_loss", x, target);
  const DType dtype = d.dtype(), computed = wide(dtype);
  d = d.to(computed);
  Tensor losses;
  if (delta > largest(computed)) {
    losses = square(d) * 0.5;
  } else {
    // c (d - c / 2): smooth_l1's d / delta would vanish if delta is large.
    const Tensor c = clamp(d, -delta, delta);
    losses = c * (d - c * 0.5);
  }
  return reduce(losses, reduction).to(dtype);
}

Tensor kl_div(const Tensor& x, const Tensor& target, KlReduction reduction, bool log_target) {
  if (autocasts(CastPolicy::f32, x, target)) {
    return kl_div(autocast(CastPolicy::f32, x), autocast(CastPolicy::f32, target), reduction,
                  log_target);
  }
  check_target("kl_div", x, target);
  if (const DType computed = wide(x.dtype()); computed != x.dtype()) {
    return kl_div(x.to(computed), target.to(computed), reduction, log_target).to(x.dtype());
  }
  Tensor losses;
  if (log_target) {
    losses = exp(target) * (target - x);
  } else {
    // log(1) for a target of 0: 0 log(0) counts as 0.
    const Tensor positive = masked_fill(target, raw::eq(target, 0), 1);
    losses = target * (log(positive) - x);
  }
  switch (reduction) {
    case KlReduction::none: return losses;
    case KlReduction::mean: return mean(losses);
    case KlReduction::sum: return sum(losses);
    case KlReduction::batchmean: break;
  }
  return div(sum(losses), x.dim() > 0 ? static_cast<double>(x.shape(0)) : 1);
}

}  // namespace weft::nn
