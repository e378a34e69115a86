// Random numbers around tensors, recorded on the tape.
#pragma once

#include "weft/tensor/tensor.h"

namespace weft {

class Generator;

/// Normal numbers with the means and standard deviations of tensors, as torch.normal: broadcast,
/// with the dtype of mean, or of std. From the thread's generator unless one is given. The
/// gradients are 0, as in PyTorch: mean + std randn_like(mean) has others. Throws InvalidArgument
/// for a negative std, which on CUDA is not looked for in a tensor; Dtype for integers.
Tensor normal(const Tensor& mean, const Tensor& std, Generator* generator = nullptr);
Tensor normal(const Tensor& mean, double std = 1, Generator* generator = nullptr);
Tensor normal(double mean, const Tensor& std, Generator* generator = nullptr);

}  // namespace weft
