// Stochastic gradient descent.
#pragma once

#include "weft/optim/optimizer.h"

namespace weft::optim {

struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;  ///< -g replaces g
};

/// torch/optim/sgd.py: g += weight_decay p; buf = g in the first step, then
/// momentum buf + (1 - dampening) g; p -= lr buf, with nesterov p -= lr (g + momentum buf), without
/// momentum p -= lr g.
/// Throws InvalidArgument for a negative momentum or weight_decay, for nesterov without momentum or
/// with dampening, and for parameters that Optimizer refuses (add_group).
class SGD : public Optimizer {
 public:
  explicit SGD(std::vector<Tensor> params, const SGDOptions& options = {});
  explicit SGD(std::vector<ParamGroup<SGDOptions>> groups);

 protected:
  NamedNumbers named_options(std::size_t group) const override;
  void update(const Stream& stream, DType dtype, std::size_t group, const double* lr,
              const std::int64_t* step, std::span<const OptimSlot> slots) override;

 private:
  void add(std::span<const Tensor> params, const SGDOptions& options);
  std::vector<SGDOptions> options_;
};

}  // namespace weft::optim
