#include "weft/nn/loss_modules.h"

#include "weft/tensor/ops.h"

namespace weft::nn {

namespace {

// A tensor for a buffer: to() changes it, and must not change the caller's, which may be another
// module's too. One that requires a gradient stays the caller's, who reads it there.
Tensor own(const Tensor& weight) { return weight.requires_grad() ? weight : raw::alias(weight); }

}  // namespace

CrossEntropyLoss::CrossEntropyLoss(const CrossEntropyOptions& options) : options_(options) {
  if (options.weight.defined()) weight = buffer("weight", own(options.weight));
  options_.weight = Tensor();  // it would not follow to()
}

Tensor CrossEntropyLoss::forward(const Tensor& logits, const Tensor& target) const {
  CrossEntropyOptions options = options_;
  options.weight = weight;
  return cross_entropy(logits, target, options);
}

NLLLoss::NLLLoss(const Tensor& class_weight, std::int64_t ignore_index, Reduction reduction)
    : ignore_index_(ignore_index), reduction_(reduction) {
  if (class_weight.defined()) weight = buffer("weight", own(class_weight));
}

Tensor NLLLoss::forward(const Tensor& log_probs, const Tensor& target) const {
  return nll_loss(log_probs, target, ignore_index_, reduction_, weight);
}

BCELoss::BCELoss(const Tensor& element_weight, Reduction reduction) : reduction_(reduction) {
  if (element_weight.defined()) weight = buffer("weight", own(element_weight));
}

Tensor BCELoss::forward(const Tensor& x, const Tensor& target) const {
  return bce_loss(x, target, reduction_, weight);
}

BCEWithLogitsLoss::BCEWithLogitsLoss(const Tensor& element_weight, Reduction reduction,
                                     const Tensor& positive_weight)
    : reduction_(reduction) {
  if (element_weight.defined()) weight = buffer("weight", own(element_weight));
  if (positive_weight.defined()) pos_weight = buffer("pos_weight", own(positive_weight));
}

Tensor BCEWithLogitsLoss::forward(const Tensor& x, const Tensor& target) const {
  return bce_with_logits(x, target, reduction_, pos_weight, weight);
}

}  // namespace weft::nn
