// Losses as modules, with the options in the constructor: nn/loss.h has the functions.
#pragma once

#include <cstdint>

#include "weft/nn/loss.h"
#include "weft/nn/module.h"

namespace weft::nn {

/// cross_entropy(). The weights of the classes, if there are any, are a buffer: they move with
/// to(), and are saved as "weight".
class CrossEntropyLoss : public Module<CrossEntropyLoss> {
 public:
  explicit CrossEntropyLoss(const CrossEntropyOptions& options = {});
  Tensor forward(const Tensor& logits, const Tensor& target) const;

  Parameter weight;  ///< undefined if there are none

 private:
  CrossEntropyOptions options_;
};

/// nll_loss(), with weights as CrossEntropyLoss has them.
class NLLLoss : public Module<NLLLoss> {
 public:
  explicit NLLLoss(const Tensor& class_weight = {}, std::int64_t ignore_index = -100,
                   Reduction reduction = Reduction::mean);
  Tensor forward(const Tensor& log_probs, const Tensor& target) const;

  Parameter weight;  ///< undefined if there are none

 private:
  std::int64_t ignore_index_;
  Reduction reduction_;
};

/// mse_loss().
class MSELoss : public Module<MSELoss> {
 public:
  explicit MSELoss(Reduction reduction = Reduction::mean) : reduction_(reduction) {}
  Tensor forward(const Tensor& x, const Tensor& target) const {
    return mse_loss(x, target, reduction_);
  }

 private:
  Reduction reduction_;
};

/// l1_loss().
class L1Loss : public Module<L1Loss> {
 public:
  explicit L1Loss(Reduction reduction = Reduction::mean) : reduction_(reduction) {}
  Tensor forward(const Tensor& x, const Tensor& target) const {
    return l1_loss(x, target, reduction_);
  }

 private:
  Reduction reduction_;
};

/// smooth_l1_loss().
class SmoothL1Loss : public Module<SmoothL1Loss> {
 public:
  explicit SmoothL1Loss(Reduction reduction = Reduction::mean, double beta = 1)
      : reduction_(reduction), beta_(beta) {}
  Tensor forward(const Tensor& x, const Tensor& target) const {
    return smooth_l1_loss(x, target, reduction_, beta_);
  }

 private:
  Reduction reduction_;
  double beta_;
};

/// huber_loss().
class HuberLoss : public Module<HuberLoss> {
 public:
  explicit HuberLoss(Reduction reduction = Reduction::mean, double delta = 1)
      : reduction_(reduction), delta_(delta) {}
  Tensor forward(const Tensor& x, const Tensor& target) const {
    return huber_loss(x, target, reduction_, delta_);
  }

 private:
  Reduction reduction_;
  double delta_;
};

/// bce_loss(), with the weight as a buffer.
class BCELoss : public Module<BCELoss> {
 public:
  explicit BCELoss(const Tensor& element_weight = {}, Reduction reduction = Reduction::mean);
  Tensor forward(const Tensor& x, const Tensor& target) const;

  Parameter weight;  ///< undefined if there are none

 private:
  Reduction reduction_;
};

/// bce_with_logits(), with both weights as buffers.
class BCEWithLogitsLoss : public Module<BCEWithLogitsLoss> {
 public:
  explicit BCEWithLogitsLoss(const Tensor& element_weight = {},
                             Reduction reduction = Reduction::mean,
                             const Tensor& positive_weight = {});
  Tensor forward(const Tensor& x, const Tensor& target) const;

  Parameter weight, pos_weight;  ///< undefined if there are none

 private:
  Reduction reduction_;
};

/// kl_div().
class KLDivLoss : public Module<KLDivLoss> {
 public:
  explicit KLDivLoss(KlReduction reduction = KlReduction::mean, bool log_target = false)
      : reduction_(reduction), log_target_(log_target) {}
  Tensor forward(const Tensor& x, const Tensor& target) const {
    return kl_div(x, target, reduction_, log_target_);
  }

 private:
  KlReduction reduction_;
  bool log_target_;
};

}  // namespace weft::nn
