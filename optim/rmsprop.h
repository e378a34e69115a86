// RMSprop.
#pragma once

#include "weft/optim/optimizer.h"

namespace weft::optim {

struct RMSpropOptions {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;  ///< L2: added to the gradient
  double momentum = 0;
  bool centered = false;
  bool maximize = false;  ///< -g replaces g
};

/// torch/optim/rmsprop.py: sq = alpha sq + (1-alpha) g^2; u = g / (sqrt(sq) + eps); p -= lr u. With
/// centered: mean = alpha mean + (1-alpha) g, and sq - mean^2 replaces sq under the root. It is at
/// least 0 here; in PyTorch rounding may make it negative, which gives NaN. With momentum: buf =
/// momentum buf + u, and buf replaces u. Throws InvalidArgument for a negative alpha, eps,
/// weight_decay or momentum, and for parameters that Optimizer refuses (add_group).
class RMSprop : public Optimizer {
 public:
  explicit RMSprop(std::vector<Tensor> params, const RMSpropOptions& options = {});
  explicit RMSprop(std::vector<ParamGroup<RMSpropOptions>> groups);

 protected:
  NamedNumbers named_options(std::size_t group) const override;
  void update(const Stream& stream, DType dtype, std::size_t group, const double* lr,
              const std::int64_t* step, std::span<const OptimSlot> slots) override;

 private:
  void add(std::span<const Tensor> params, const RMSpropOptions& options);
  std::vector<RMSpropOptions> options_;
};

}  // namespace weft::optim
