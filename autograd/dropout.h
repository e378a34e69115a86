// Dropout, recorded on the tape.
#pragma once

#include "weft/tensor/tensor.h"

namespace weft {

/// Sets each element of x to 0 with probability p and divides the others by 1 - p. Returns x itself
/// if training is false or p is 0. The mask takes one number per element, in row-major order, from
/// the thread's generator of x's device. Throws InvalidArgument for p outside [0, 1].
Tensor dropout(const Tensor& x, double p = 0.5, bool training = true);

/// x [N,C,..]: sets each whole channel of each image to 0 with probability p and divides the others
/// by 1 - p. Otherwise as dropout. Throws Shape below 3 dimensions.
Tensor dropout2d(const Tensor& x, double p = 0.5, bool training = true);

}  // namespace weft
