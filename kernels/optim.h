// Optimiser updates: all parameters of a step in one pass. Scalars that change from step to step
// come by pointer to memory of the device, so that a step can be captured once and replayed.
#pragma once

#include <cstdint>
#include <span>

#include "weft/core/dtype.h"
#include "weft/core/runtime.h"

namespace weft {

/// n elements at each address, all of one dtype; unused state is null.
struct OptimSlot {
  void* param = nullptr;
  const void* grad = nullptr;
  void* state1 = nullptr;  ///< SGD: momentum buffer. Adam: m
  void* state2 = nullptr;  ///< Adam: v
  std::int64_t n = 0;
};

/// torch/optim/sgd.h; *step is 1 in the first step, where the buffer becomes g undamped.
struct SgdParams {
  const double* lr = nullptr;
  const std::int64_t* step = nullptr;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
};

/// torch/optim/adam.h: p -= lr/(1-b1^t) * m / (sqrt(v)/sqrt(1-b2^t) + eps), t = *step from 1.
struct AdamParams {
  const double* lr = nullptr;
  const std::int64_t* step = nullptr;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = false;  ///< AdamW: p *= 1 - lr * weight_decay first; else g += weight_decay * p
};

struct OptimKernels {
  void (*sgd)(const Stream&, DType, const SgdParams&, std::span<const OptimSlot>);
  void (*adam)(const Stream&, DType, const AdamParams&, std::span<const OptimSlot>);
  /// *out (f64) = sum over all slots of grad^2, in f64.
  void (*sum_of_squares)(const Stream&, DType, std::span<const OptimSlot>, double* out);
  /// grad *= *factor, for all slots (grad is written here).
  void (*scale_grads)(const Stream&, DType, const double* factor, std::span<const OptimSlot>);
};

}  // namespace weft
