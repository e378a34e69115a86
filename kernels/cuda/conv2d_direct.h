// Convolutions without cuDNN.
#pragma once

#include "weft/kernels/conv.h"

namespace weft::cuda {

/// A pass in ConvProblem's terms: writes big, small or weights from the other two. For what cuDNN
/// has no algorithm for, or no deterministic one: an element is one thread's sum, in f64 and in a
/// fixed order, so that it is repeatable, accurate, and slow. Any strides; f32, f64, bf16.
void convolve_directly(const Stream& stream, ConvPass pass, const Conv2dParams& params,
                       const View& big, const View& small, const View& weights);

}  // namespace weft::cuda
