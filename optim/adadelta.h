// Adadelta.
#pragma once

#include "weft/optim/optimizer.h"

namespace weft::optim {

struct AdadeltaOptions {
  double lr = 1;
  double rho = 0.9;  ///< of both running means
  double eps = 1e-6;
  double weight_decay = 0;  ///< L2: added to the gradient
  bool maximize = false;    ///< -g replaces g
};

/// torch/optim/adadelta.py (Zeiler, "ADADELTA: An Adaptive Learning Rate Method", 2012): sq = rho
/// sq
/// + (1-rho) g^2; delta = g sqrt(acc + eps) / sqrt(sq + eps); acc = rho acc + (1-rho) delta^2; p -=
/// lr delta. Throws InvalidArgument for a rho outside [0, 1], a negative eps or weight_decay, and
/// for parameters that Optimizer refuses (add_group).
class Adadelta : public Optimizer {
 public:
  explicit Adadelta(std::vector<Tensor> params, const AdadeltaOptions& options = {});
  explicit Adadelta(std::vector<ParamGroup<AdadeltaOptions>> groups);

 protected:
  NamedNumbers named_options(std::size_t group) const override;
  void update(const Stream& stream, DType dtype, std::size_t group, const double* lr,
              const std::int64_t* step, std::span<const OptimSlot> slots) override;

 private:
  void add(std::span<const Tensor> params, const AdadeltaOptions& options);
  std::vector<AdadeltaOptions> options_;
};

}  // namespace weft::optim
