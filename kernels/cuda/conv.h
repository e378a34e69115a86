// A part of the convolution code that can be tested without a GPU.
#pragma once

#include "weft/kernels/conv.h"

namespace weft::cuda {

/// The shape that cuDNN computes for the small image of `args` (y, or x if transposed) from its
/// descriptors of the big image and of the weights in `format`.
Shape library_output_shape(const Conv2dArgs& args, MemoryFormat format);

}  // namespace weft::cuda
