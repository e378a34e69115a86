// Losses. autograd/loss.h documents the fused ones; the others are composed of element-wise
// operations. Unless said otherwise x and target have the same shape (else Shape), dtype (else
// Dtype) and device; mse_loss, l1_loss, smooth_l1_loss and huber_loss broadcast different shapes,
// with a warning, as PyTorch does. The reduction goes over all elements; without reduction the loss
// has x's shape. Gradients also reach a floating target, and pos_weight. The weights of classes are
// constants.
#pragma once

#include "weft/autograd/loss.h"
#include "weft/tensor/tensor.h"

namespace weft::nn {

using weft::mse_loss;

/// PyTorch's defaults.
struct CrossEntropyOptions {
  Tensor weight{};  ///< [C], dtype of logits: weight of each class; undefined: 1
  std::int64_t ignore_index = -100;
  double label_smoothing = 0;
  Reduction reduction = Reduction::mean;
};

/// logits [N,C] or [N,C,d1,...], target i64 [N] or [N,d1,...]; one sample without a batch: [C] and
/// []. For each target t, with
/// p = log_softmax(logits) and smoothing e: -(1-e) weight[t] p[t] - e/C sum_c weight[c] p[c]. The
/// mean is the sum divided by the sum of weight[t]. Targets equal to ignore_index do not count; the
/// mean of no target is NaN. A floating target has logits' shape and holds the probabilities q of
/// the classes: -sum_c weight[c] ((1-e) q[c] + e/C) p[c], of which the mean is over all samples,
/// and nothing is ignored. Without weights this is one fused operation, weft::cross_entropy.
/// Another target that is no class throws InvalidArgument, on CUDA when the thread next waits; the
/// loss is NaN until then. Throws Shape, Dtype, Device, InvalidArgument.
Tensor cross_entropy(const Tensor& logits, const Tensor& target,
                     const CrossEntropyOptions& options = {});

/// -weight[target] log_probs[n, target[n]]: log_probs [N,C] or [N,C,d1,...], target i64 [N] or
/// [N,d1,...] (one sample: [C] and []), weight [C] or undefined: 1. The loss of a target equal to
/// ignore_index is 0. The mean divides by the sum of the weights of the other targets (NaN when
/// there are none). Throws Shape, Device, Dtype for a target that is not i64, and InvalidArgument
/// for a target that is no class, as cross_entropy, which does log_softmax and this in one step.
Tensor nll_loss(const Tensor& log_probs, const Tensor& target, std::int64_t ignore_index = -100,
                Reduction reduction = Reduction::mean, const Tensor& weight = {});

/// Binary cross-entropy of probabilities x and targets t in [0, 1]:
/// -(t log(x) + (1 - t) log(1 - x)), where a logarithm is at least -100 (torch.nn.BCELoss). On the
/// CPU, another x or t (also NaN) throws InvalidArgument; on CUDA, where a check would wait for the
/// device, another x gives NaN. Where x comes from a sigmoid, use bce_with_logits: it is exact.
///
/// `weight` broadcasts to x and multiplies the loss of each element, as in bce_with_logits; the
/// mean still divides by the number of elements.
Tensor bce_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::mean,
                const Tensor& weight = {});

/// Binary cross-entropy of sigmoid(x), without overflow:
/// (1 - t) x - (1 + (w - 1) t) log(sigmoid(x)), where w is pos_weight, which broadcasts to x, or 1.
Tensor bce_with_logits(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::mean,
                       const Tensor& pos_weight = {}, const Tensor& weight = {});

/// |x - target|
Tensor l1_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::mean);

/// With d = |x - target|: d^2 / (2 beta) where d < beta, d - beta / 2 elsewhere. Throws
/// InvalidArgument for beta < 0; beta = 0 is l1_loss.
Tensor smooth_l1_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::mean,
                      double beta = 1);

/// delta times smooth_l1_loss with beta = delta: d^2 / 2 where d < delta, delta (d - delta / 2)
/// elsewhere. Throws InvalidArgument unless delta > 0.
Tensor huber_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::mean,
                  double delta = 1);

/// batchmean: the sum divided by the length of dimension 0, which is the mathematical definition.
enum class KlReduction { none, mean, batchmean, sum };

/// Kullback-Leibler divergence of the distribution `target` from exp(x), where x are
/// log-probabilities: target (log(target) - x), 0 where target is 0.
/// With log_target: exp(target) (target - x).
Tensor kl_div(const Tensor& x, const Tensor& target, KlReduction reduction = KlReduction::mean,
              bool log_target = false);

}  // namespace weft::nn
