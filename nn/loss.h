// Losses. autograd/ops.h documents the fused ones; the others are composed of element-wise
// operations. x and target have one shape unless said otherwise (else Shape), one dtype and device;
// the reduction goes over all elements, none gives x's shape. Gradients reach target, too.
#pragma once

#include "weft/autograd/ops.h"

namespace weft::nn {

using weft::cross_entropy;
using weft::mse_loss;

/// -log_probs[n, target[n]]: log_probs [N,C] or [N,C,d1,...], target i64 [N] or [N,d1,...]. Targets
/// equal to ignore_index count nothing: 0 without reduction, and the mean is over the others (NaN
/// when there are none). Throws Shape, Dtype for a target that is not i64, and InvalidArgument for
/// one that is no class, for which CUDA has to be waited for. cross_entropy takes log_softmax and
/// this in one step, and without waiting.
Tensor nll_loss(const Tensor& log_probs, const Tensor& target, std::int64_t ignore_index = -100,
                Reduction reduction = Reduction::mean);

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

}  // namespace weft::nn
