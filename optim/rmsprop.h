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
  bool maximize = false;  ///< uphill: with -g in place of g
};

/// torch/optim/rmsprop.py: sq = alpha sq + (1-alpha) g^2; centered: mean = alpha mean + (1-alpha) g
/// and sq - mean^2 under the root, at least 0 (PyTorch's may round to less, and give NaN);
/// u = g / (sqrt(sq) + eps); with momentum: buf = momentum buf + u, which takes u's place;
/// p -= lr u. Throws InvalidArgument for negative options.
class RMSprop : public Optimizer {
 public:
  explicit RMSprop(std::vector<Tensor> params, const RMSpropOptions& options = {});
  explicit RMSprop(std::vector<ParamGroup<RMSpropOptions>> groups);

  double momentum(std::size_t group) const override;
  void set_momentum(std::size_t group, double momentum) override;

 protected:
  void update(const Stream& stream, DType dtype, std::size_t group, const double* lr,
              const std::int64_t* step, std::span<const OptimSlot> slots) override;

 private:
  void add(std::span<const Tensor> params, const RMSpropOptions& options);
  std::vector<RMSpropOptions> options_;
};

}  // namespace weft::optim
