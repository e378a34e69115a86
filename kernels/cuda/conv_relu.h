// What follows a convolution where cuDNN's plan does not do it, and its gradient.
#pragma once

#include "weft/kernels/conv.h"

namespace weft::cuda {

/// y = then(y + bias). y [N,K,H,W] dense, bias [K].
void add_bias(const Stream&, const View& y, const View& bias, Activation then);

// The entries of Conv2dKernels.
std::size_t relu_backward_workspace_bytes(const ReluBackwardArgs&);
void relu_backward(const Stream&, const ReluBackwardArgs&, void* workspace);

}  // namespace weft::cuda
