// Convolutions without cuDNN.
#pragma once

#include "weft/kernels/conv.h"

namespace weft::cuda {

/// A pass in the terms of ConvProblem: writes big, small or weights from the other two. It is used
/// for problems for which cuDNN has no algorithm, or no deterministic one. One thread sums each
/// element, in f64 and in a fixed order: the result is repeatable and accurate, but slow. Any
/// strides; f32, f64, bf16.
void convolve_directly(const Stream& stream, ConvPass pass, const Conv2dParams& params,
                       const View& big, const View& small, const View& weights);

}  // namespace weft::cuda
