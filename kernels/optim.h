// Optimiser updates: all parameters of a step in one pass. Scalars that change between steps are
// passed as pointers to device memory, so that a step can be captured once and replayed.
#pragma once

#include <cstdint>
#include <span>

#include "weft/core/base/dtype.h"
#include "weft/core/runtime/runtime.h"

namespace weft {

/// One parameter with its gradient and state: n elements at each address, all of one dtype. State
/// that is not used is null.
struct OptimSlot {
  void* param = nullptr;
  const void* grad = nullptr;
  void* state1 = nullptr;  ///< SGD: momentum buffer. Adam: m. RMSprop, Adadelta: mean of g^2
  void* state2 = nullptr;  ///< Adam: v. RMSprop: momentum buffer. Adadelta: mean of delta^2
  void* state3 = nullptr;  ///< Adam: the largest v, with amsgrad. RMSprop: mean of g
  std::int64_t n = 0;
};

// With maximize, -g replaces g, before weight decay is added.

/// As torch.optim.SGD. *step is 1 in the first step; then the momentum buffer becomes g, without
/// dampening.
struct SgdParams {
  const double* lr = nullptr;
  const std::int64_t* step = nullptr;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;
};

/// As torch.optim.Adam: p -= lr/(1-b1^t) * m / (sqrt(v)/sqrt(1-b2^t) + eps), where t = *step starts
/// at 1. amsgrad: under the root, the largest v so far (a NaN counts as the largest) replaces v.
struct AdamParams {
  const double* lr = nullptr;
  const std::int64_t* step = nullptr;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = false;  ///< AdamW: p *= 1 - lr * weight_decay first; else g += weight_decay * p
  bool amsgrad = false;
  bool maximize = false;
};

/// As torch.optim.RMSprop: sq = alpha sq + (1-alpha) g^2, u = g / (sqrt(sq) + eps), p -= lr u.
/// centered: mean = alpha mean + (1-alpha) g, and under the root max(sq - mean^2, 0) replaces sq.
/// momentum: buf = momentum buf + u, and buf replaces u.
struct RmspropParams {
  const double* lr = nullptr;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;  ///< added to the gradient
  double momentum = 0;
  bool centered = false;
  bool maximize = false;
};

/// As torch.optim.Adadelta: sq = rho sq + (1-rho) g^2, delta = g sqrt(acc + eps) / sqrt(sq + eps),
/// acc = rho acc + (1-rho) delta^2, p -= lr delta.
struct AdadeltaParams {
  const double* lr = nullptr;
  double rho = 0.9;
  double eps = 1e-6;
  double weight_decay = 0;  ///< added to the gradient
  bool maximize = false;
};

struct OptimKernels {
  void (*sgd)(const Stream&, DType, const SgdParams&, std::span<const OptimSlot>);
  void (*adam)(const Stream&, DType, const AdamParams&, std::span<const OptimSlot>);
  void (*rmsprop)(const Stream&, DType, const RmspropParams&, std::span<const OptimSlot>);
  void (*adadelta)(const Stream&, DType, const AdadeltaParams&, std::span<const OptimSlot>);
  /// *out (f64) = sum over all slots of grad^2, in f64.
  void (*sum_of_squares)(const Stream&, DType, std::span<const OptimSlot>, double* out);
  /// grad *= *factor for all slots. It writes to the grad of the slots.
  void (*scale_grads)(const Stream&, DType, const double* factor, std::span<const OptimSlot>);
  /// Clamps grad to [-most, most] for all slots. It writes to the grad of the slots; NaN stays NaN.
  void (*clamp_grads)(const Stream&, DType, double most, std::span<const OptimSlot>);
};

}  // namespace weft
