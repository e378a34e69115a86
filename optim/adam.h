// Adam and AdamW.
#pragma once

#include "weft/optim/optimizer.h"

namespace weft::optim {

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;  ///< L2: added to the gradient
  bool amsgrad = false;     ///< the largest v so far replaces v in the update of p
  bool maximize = false;    ///< -g replaces g
};

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;  ///< decoupled: p *= 1 - lr weight_decay before the update
  bool amsgrad = false;        ///< as for Adam
  bool maximize = false;       ///< as for Adam
};

/// torch/optim/adam.py: m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2;
/// p -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps), t counting from 1.
/// Throws InvalidArgument for betas outside [0, 1), for a negative eps or weight_decay, and for
/// parameters that Optimizer refuses (add_group).
class Adam : public Optimizer {
 public:
  explicit Adam(std::vector<Tensor> params, const AdamOptions& options = {});
  explicit Adam(std::vector<ParamGroup<AdamOptions>> groups);

 protected:
  /// amsgrad: whether any group uses it.
  explicit Adam(bool amsgrad)
      : Optimizer({"exp_avg", "exp_avg_sq", amsgrad ? "max_exp_avg_sq" : ""}) {}
  void add(std::span<const Tensor> params, const AdamOptions& options, bool decoupled);
  void check_momentum(double beta1) const override;
  NamedNumbers named_options(std::size_t group) const override;
  void update(const Stream& stream, DType dtype, std::size_t group, const double* lr,
              const std::int64_t* step, std::span<const OptimSlot> slots) override;

 private:
  std::vector<AdamOptions> options_;
  bool decoupled_ = false;
};

/// Adam with decoupled weight decay (torch/optim/adamw.py). Throws like Adam.
class AdamW : public Adam {
 public:
  explicit AdamW(std::vector<Tensor> params, const AdamWOptions& options = {});
  explicit AdamW(std::vector<ParamGroup<AdamWOptions>> groups);
};

}  // namespace weft::optim
