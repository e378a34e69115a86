// The cross-entropy of logits whose vocabulary is cut over the ranks.
#pragma once

#include <cstdint>

#include "weft/autograd/loss.h"
#include "weft/parallel/collectives.h"
#include "weft/tensor/tensor.h"

namespace weft::parallel {

struct VocabCrossEntropyOptions {
  std::int64_t ignore_index = -100;
  weft::Reduction reduction = weft::Reduction::mean;
};

/// nn::cross_entropy of logits [N,classes], of which this rank has the columns [N,c]: of n ranks
/// each has the next ceil(classes / n) columns, the last ranks fewer or none, as VocabParallel
/// gives them. target i64 [N], the same on all ranks, as is the result. The logits are never
/// gathered: the ranks exchange the maximum of each row, then the sum of its exponentials and the
/// logit of its target, 3 N numbers (Shoeybi et al., "Megatron-LM", arXiv 1909.08053, section 3).
/// Each row is log(sum_c exp(x_c - m)) - (x_t - m), m: its maximum. A target that is no class
/// throws InvalidArgument, and makes the loss NaN on CUDA. Throws Shape, Dtype, and what
/// Collectives throws.
Tensor cross_entropy(const Collectives& ranks, const Tensor& logits, const Tensor& target,
                     std::int64_t classes, const VocabCrossEntropyOptions& options = {});

}  // namespace weft::parallel
