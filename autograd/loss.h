// Losses, recorded on the tape; nn/loss.h has more. tensor/ops.h has what is not said here.
#pragma once

#include <utility>

#include "weft/kernels/loss.h"
#include "weft/tensor/tensor.h"

namespace weft {

/// logits [N,C] or [N,C,d1,...], target i64 [N] or [N,d1,...], as
/// torch.nn.functional.cross_entropy.
Tensor cross_entropy(const Tensor& logits, const Tensor& target,
                     const CrossEntropyParams& params = {});
/// Different shapes are broadcast, with a warning, as in PyTorch.
Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::mean);

namespace autograd {

/// x and target of a loss in their common shape, with a warning if they had different ones. Throws
/// Shape where there is none.
std::pair<Tensor, Tensor> broadcast_pair(const char* op, const Tensor& x, const Tensor& target);

}  // namespace autograd

}  // namespace weft
