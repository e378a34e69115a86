// The optimisers' updates of consecutive parameters.
#pragma once

#include <cstdint>

#include "weft/kernels/cpu/loops/table.h"

namespace weft::cpu {

/// The scalars of an update, computed once per step; kernels/optim.h has the formulas.
struct AdamScalars {
  double beta1, beta2;
  double step_size;            // lr / (1 - beta1^t)
  double inverse_correction2;  // 1 / sqrt(1 - beta2^t)
  double eps;
  double weight_decay;  // added to the gradient; 0 for AdamW
  double decay;         // factor on the parameter; 1 without AdamW
  bool amsgrad, maximize;
};
struct SgdScalars {
  double lr, weight_decay, momentum, dampening;
  bool nesterov;
  bool first;  // the first step: the momentum buffer becomes the gradient
  bool maximize;
};
struct RmspropScalars {
  double lr, alpha, eps, weight_decay, momentum;
  bool centered, maximize;
};
struct AdadeltaScalars {
  double lr, rho, eps, weight_decay;
  bool maximize;
};
struct OptimLoops {
  void (*adam)(std::int64_t n, void* p, const void* g, void* m, void* v, void* largest,
               const AdamScalars&);
  void (*sgd)(std::int64_t n, void* p, const void* g, void* buffer, const SgdScalars&);
  void (*rmsprop)(std::int64_t n, void* p, const void* g, void* square, void* buffer, void* mean,
                  const RmspropScalars&);
  void (*adadelta)(std::int64_t n, void* p, const void* g, void* square, void* updates,
                   const AdadeltaScalars&);
  void (*scale)(std::int64_t n, void* x, double factor);
  void (*clamp)(std::int64_t n, void* x, double most);  // to [-most, most]
};
WEFT_LOOPS(ByDType<OptimLoops>, optim_loops)

}  // namespace weft::cpu
