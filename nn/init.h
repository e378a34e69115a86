// Weight initialisation, PyTorch's values bit for bit from the same seed.
#pragma once

#include "weft/tensor/tensor.h"

namespace weft::nn::init {

/// U[from, to) from the thread's generator.
void uniform(const Tensor& x, double from, double to);
/// kaiming_uniform_ with leaky_relu's gain for negative slope `a`: U(+-gain sqrt(3 / fan_in)),
/// gain = sqrt(2 / (1 + a^2)). fan_in = shape[1] times the kernel's area, as PyTorch computes it
/// also for ConvTranspose2d's [in, out/groups, kh, kw]. Throws Shape below 2 dimensions.
void kaiming_uniform(const Tensor& w, double a);
/// What Linear, Conv2d and ConvTranspose2d start from (torch/nn/modules/{linear,conv}.py):
/// kaiming_uniform(w, sqrt(5)), then bias U(+-1/sqrt(fan_in)) unless undefined.
void default_weight_and_bias(const Tensor& w, const Tensor& bias);

}  // namespace weft::nn::init
