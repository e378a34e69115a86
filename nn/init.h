// torch.nn.init: fills x in place with numbers from the thread's generator, without recording on
// the tape. From the same seed, uniform numbers equal PyTorch's bit for bit, normal ones within
// 2e-6.
#pragma once

#include "weft/tensor/tensor.h"

namespace weft::nn::init {

enum class FanMode { fan_in, fan_out };
enum class Nonlinearity { linear, sigmoid, tanh, relu, leaky_relu, selu };

/// The factor for a layer's weights that keeps the size of the values through the following
/// nonlinearity: 1 for linear and sigmoid, 5/3 for tanh, sqrt(2) for relu, sqrt(2 / (1 + slope^2))
/// for leaky_relu, 3/4 for selu. slope: that of leaky_relu.
double calculate_gain(Nonlinearity nonlinearity, double slope = 0.01);

/// U[from, to)
void uniform_(const Tensor& x, double from = 0, double to = 1);
/// N(mean, std)
void normal_(const Tensor& x, double mean = 0, double std = 1);
/// N(mean, std) within [low, high], by the inverse of the distribution function. Throws
/// InvalidArgument unless mean is finite, std > 0 and low < high.
void trunc_normal_(const Tensor& x, double mean = 0, double std = 1, double low = -2,
                   double high = 2);
void constant_(const Tensor& x, double value);
void zeros_(const Tensor& x);
void ones_(const Tensor& x);
/// Writes 1 on the diagonal and 0 elsewhere. Throws Shape unless x has 2 dimensions.
void eye_(const Tensor& x);
/// The weights of a convolution that copies as many channels of its input as it can, in each group.
/// Throws Shape unless x has 3 to 5 dimensions and the first is divisible by groups.
void dirac_(const Tensor& x, std::int64_t groups = 1);

/// gain times a matrix [shape[0], rest] with orthonormal rows, or columns if there are fewer of
/// them: the Q of a QR decomposition of N(0, 1) numbers, with the signs for which the diagonal of R
/// is positive (Saxe, McClelland and Ganguli, 2013). Throws Shape below 2 dimensions.
void orthogonal_(const Tensor& x, double gain = 1);

// fan_in = shape[1] and fan_out = shape[0], each times the kernel's area; as in PyTorch, also for
// the [in, out/groups, kh, kw] of ConvTranspose2d. The functions throw Shape below 2 dimensions,
// and InvalidArgument for a gain that is negative or not finite. They leave a tensor without
// elements as it is and log a warning.

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

/// The initial values of Linear, Conv1d, Conv2d and ConvTranspose2d
/// (torch/nn/modules/{linear,conv}.py): kaiming_uniform_(w, sqrt(5)), then bias U(+-1/sqrt(fan_in))
/// unless it is undefined.
void default_weight_and_bias(const Tensor& w, const Tensor& bias);

}  // namespace weft::nn::init
