// Losses. autograd/ops.h documents the fused ones; the others are composed of element-wise
// operations. x and target have one shape unless said otherwise (else Shape), one dtype and device;
// the reduction goes over all elements, none gives x's shape. Gradients reach target, too, if it is
// floating; weights are constants.
#pragma once

#include "weft/autograd/ops.h"

namespace weft::nn {

using weft::mse_loss;

/// PyTorch's defaults.
struct CrossEntropyOptions {
  Tensor weight{};  ///< [C], of logits' dtype: what each class counts; undefined: 1
  std::int64_t ignore_index = -100;
  double label_smoothing = 0;
  Reduction reduction = Reduction::mean;
};

/// logits [N,C] or [N,C,d1,...], target i64 [N] or [N,d1,...]: for each target t, with
/// p = log_softmax(logits) and smoothing e, -(1-e) weight[t] p[t] - e/C sum_c weight[c] p[c]. The
/// mean divides the sum by that of weight[t]; what ignore_index marks counts nothing (NaN when that
/// is all). Without weights one fused operation, as weft::cross_entropy. An other target that is no
/// class throws InvalidArgument on the CPU and gives NaN on CUDA, which is not waited for. Throws
/// Shape, Dtype, InvalidArgument.
Tensor cross_entropy(const Tensor& logits, const Tensor& target,
                     const CrossEntropyOptions& options = {});

/// -weight[target] log_probs[n, target[n]]: log_probs [N,C] or [N,C,d1,...], target i64 [N] or
/// [N,d1,...], weight [C] or undefined: 1. Targets equal to ignore_index count nothing: 0 without
/// reduction. The mean divides by the sum of the others' weights (NaN when there are none). Throws
/// Shape, Dtype for a target that is not i64, and InvalidArgument for one that is no class, for
/// which CUDA has to be waited for. cross_entropy takes log_softmax and this in one step, and
/// without waiting.
Tensor nll_loss(const Tensor& log_probs, const Tensor& target, std::int64_t ignore_index = -100,
                Reduction reduction = Reduction::mean, const Tensor& weight = {});

/// Binary cross-entropy of probabilities x in [0, 1]: -(t log(x) + (1 - t) log(1 - x)), the
/// logarithms being -100 at least (torch.nn.BCELoss); NaN for other x. bce_with_logits is exact
/// where x comes out of a sigmoid.
Tensor bce_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::mean);

/// Binary cross-entropy of sigmoid(x), without overflow:
/// (1 - t) x - (1 + (w - 1) t) log(sigmoid(x)); w: pos_weight, which broadcasts to x, or 1.
Tensor bce_with_logits(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::mean,
                       const Tensor& pos_weight = {});

/// |x - target|
Tensor l1_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::mean);

/// With d = |x - target|: d^2 / (2 beta) below beta, d - beta / 2 from there on. Throws
/// InvalidArgument for beta < 0; beta = 0 is l1_loss.
Tensor smooth_l1_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::mean,
                      double beta = 1);

/// batchmean: the sum, divided by the length of dimension 0; what the formula has.
enum class KlReduction { none, mean, batchmean, sum };

/// Kullback-Leibler divergence of the distribution target from exp(x), x being log-probabilities:
/// target (log(target) - x), 0 where target is 0; with log_target exp(target) (target - x).
Tensor kl_div(const Tensor& x, const Tensor& target, KlReduction reduction = KlReduction::mean,
              bool log_target = false);

}  // namespace weft::nn
