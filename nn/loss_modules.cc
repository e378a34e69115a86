#include "weft/nn/loss_modules.h"

namespace weft::nn {

CrossEntropyLoss::CrossEntropyLoss(const CrossEntropyOptions& options) : options_(options) {
  if (options.weight.defined()) weight = buffer("weight", options.weight);
  options_.weight = Tensor();  // it would not follow to()
}

Tensor CrossEntropyLoss::forward(const Tensor& logits, const Tensor& target) const {
  CrossEntropyOptions options = options_;
  options.weight = weight;
  return cross_entropy(logits, target, options);
}

NLLLoss::NLLLoss(const Tensor& class_weight, std::int64_t ignore_index, Reduction reduction)
    : ignore_index_(ignore_index), reduction_(reduction) {
  if (class_weight.defined()) weight = buffer("weight", class_weight);
}

Tensor NLLLoss::forward(const Tensor& log_probs, const Tensor& target) const {
  return nll_loss(log_probs, target, ignore_index_, reduction_, weight);
}

BCELoss::BCELoss(const Tensor& element_weight, Reduction reduction) : reduction_(reduction) {
  if (element_weight.defined()) weight = buffer("weight", element_weight);
}

Tensor BCELoss::forward(const Tensor& x, const Tensor& target) const {
  return bce_loss(x, target, reduction_, weight);
}

BCEWithLogitsLoss::BCEWithLogitsLoss(const Tensor& element_weight, Reduction reduction,
                                     const Tensor& positive_weight)
    : reduction_(reduction) {
  if (element_weight.defined()) weight = buffer("weight", element_weight);
  if (positive_weight.defined()) pos_weight = buffer("pos_weight", positive_weight);
}

Tensor BCEWithLogitsLoss::forward(const Tensor& x, const Tensor& target) const {
  return bce_with_logits(x, target, reduction_, pos_weight, weight);
}

}  // namespace weft::nn
