// Losses that are faster in one pass than as separate operations.
#pragma once

#include <cstdint>

#include "weft/core/runtime/runtime.h"
#include "weft/kernels/view.h"

namespace weft {

enum class Reduction : std::uint8_t { none, mean, sum };

struct CrossEntropyParams {
  std::int64_t ignore_index = -100;
  double label_smoothing = 0;
  Reduction reduction = Reduction::mean;
};

/// workspace: as many bytes as the function behind it says for this call, null for none.
struct LossKernels {
  /// As torch.nn.functional.cross_entropy. logits [N,C] dense; target [N] i64, in [0,C) or
  /// ignore_index: the CPU trusts the targets. On CUDA loss and gradient of a row with any other
  /// target are NaN, and this reports it as check_bounds does (kernels/indexing.h). log_probs [N,C]
  /// = log_softmax(logits). loss: [N] for Reduction::none, else scalar. count: f64 scalar, the
  /// number of targets that are not ignored. mean divides by it (NaN if it is 0, as PyTorch). With
  /// label smoothing e, the loss of a row is (1-e) nll + e/C * sum_c(-log_probs).
  void (*cross_entropy)(const Stream&, const CrossEntropyParams&, const View& logits,
                        const View& target, const View& log_probs, const View& loss,
                        const View& count, void* workspace);
  std::size_t (*cross_entropy_workspace_bytes)(const CrossEntropyParams&, const View& logits);
  void (*cross_entropy_backward)(const Stream&, const CrossEntropyParams&, const View& grad_loss,
                                 const View& log_probs, const View& target, const View& count,
                                 const View& grad_logits);
  /// loss = mean or sum of (x - target)^2, a scalar. x and target are dense and have one shape and
  /// the same strides.
  void (*mse)(const Stream&, Reduction, const View& x, const View& target, const View& loss,
              void* workspace);
  std::size_t (*mse_workspace_bytes)(const View& x);
  /// grad_x = 2 (x - target) grad_loss, divided by n for mean.
  void (*mse_backward)(const Stream&, Reduction, const View& grad_loss, const View& x,
                       const View& target, const View& grad_x);
};

}  // namespace weft
