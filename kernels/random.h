// Filling tensors with random numbers.
#pragma once

#include "weft/core/runtime/rng.h"
#include "weft/core/runtime/runtime.h"
#include "weft/kernels/view.h"

namespace weft {

/// y is dense, f32 or f64 (bernoulli: any dtype); its elements are drawn in memory order. The CPU
/// draws from the generator; core/runtime/rng.h says which values are PyTorch's, bit for bit. CUDA
/// takes one 64-bit key from the generator and uses it for Philox4x32-10.
struct RandomKernels {
  void (*uniform)(const Stream&, Generator&, double from, double to, const View& y);
  void (*normal)(const Stream&, Generator&, double mean, double std, const View& y);
  /// 1 with probability p, else 0; p is from 0 to 1, ends included.
  void (*bernoulli)(const Stream&, Generator&, double p, const View& y);
};

}  // namespace weft
