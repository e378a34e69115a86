// torch.nn.init: writes into x's memory from the thread's generator, without recording. What draws
// uniformly gives PyTorch's values bit for bit from the same seed, what draws normally within 2e-6.
#pragma once

#include "weft/tensor/tensor.h"

namespace weft::nn::init {

enum class FanMode { fan_in, fan_out };
enum class Nonlinearity { linear, sigmoid, tanh, relu, leaky_relu, selu };

/// By how much a layer must be scaled so that the nonlinearity behind it keeps the size of values:
/// 1, 1, 5/3, sqrt(2), sqrt(2 / (1 + slope^2)), 3/4. slope: of leaky_relu.
double calculate_gain(Nonlinearity nonlinearity, double slope = 0.01);

/// U[from, to)
void uniform_(const Tensor& x, double from = 0, double to = 1);
/// N(mean, std)
void normal_(const Tensor& x, double mean = 0, double std = 1);
/// N(mean, std) within [low, high], by way of the inverse of the distribution function.
void trunc_normal_(const Tensor& x, double mean = 0, double std = 1, double low = -2,
                   double high = 2);
void constant_(const Tensor& x, double value);
void zeros_(const Tensor& x);
void ones_(const Tensor& x);
/// 1 on the diagonal, 0 elsewhere. Throws Shape unless x has 2 dimensions.
void eye_(const Tensor& x);
/// The weights of a convolution that passes on its input's channels, as many as it can, in each
/// group. Throws Shape unless x has 3 to 5 dimensions, the first divisible by groups.
void dirac_(const Tensor& x, std::int64_t groups = 1);

/// gain times a matrix [shape[0], rest] whose rows, or columns where there are fewer of them, are
/// orthonormal: the Q of a QR decomposition of N(0, 1) draws, with the signs that make R's diagonal
/// positive (Saxe, McClelland and Ganguli, 2013). Throws Shape below 2 dimensions.
void orthogonal_(const Tensor& x, double gain = 1);

// With fan_in = shape[1] and fan_out = shape[0], each times the kernel's area (as PyTorch computes
// them also for ConvTranspose2d's [in, out/groups, kh, kw]). Throw Shape below 2 dimensions, and
// InvalidArgument for a gain that is negative or not finite. A tensor without elements stays as it
// is, with a warning.

/// U(+-gain sqrt(6 / (fan_in + fan_out)))
void xavier_uniform_(const Tensor& w, double gain = 1);
/// N(0, gain sqrt(2 / (fan_in + fan_out)))
void xavier_normal_(const Tensor& w, double gain = 1);
/// U(+-gain sqrt(3 / fan)), gain = calculate_gain(nonlinearity, a)
void kaiming_uniform_(const Tensor& w, double a = 0, FanMode mode = FanMode::fan_in,
                      Nonlinearity nonlinearity = Nonlinearity::leaky_relu);
/// N(0, gain / sqrt(fan))
void kaiming_normal_(const Tensor& w, double a = 0, FanMode mode = FanMode::fan_in,
                     Nonlinearity nonlinearity = Nonlinearity::leaky_relu);

/// What Linear, Conv2d and ConvTranspose2d start from (torch/nn/modules/{linear,conv}.py):
/// kaiming_uniform_(w, sqrt(5)), then bias U(+-1/sqrt(fan_in)) unless undefined.
void default_weight_and_bias(const Tensor& w, const Tensor& bias);

}  // namespace weft::nn::init
