// What tests without a GPU can ask the convolution code.
#pragma once

#include "weft/kernels/conv.h"

namespace weft::cuda {

/// The shape cuDNN computes for the small image of `args` (y, or x when transposed), from its
/// descriptors of the big image and the weights in `format`.
Shape library_output_shape(const Conv2dArgs& args, MemoryFormat format);

}  // namespace weft::cuda
