// Draws of indices by their probabilities.
#pragma once

#include <cstdint>
#include <span>

#include "weft/core/runtime/rng.h"
#include "weft/tensor/tensor.h"

namespace weft {

/// Indices [n], or [rows,n] for probabilities [rows,count], i64: each drawn with its probability in
/// its row, which need not have the sum 1. Without replacement no index is drawn twice: each draw
/// takes the probabilities of the indices that are left. As torch.multinomial, for a seed bit for
/// bit as on PyTorch's CPU (aten/src/ATen/native/Distributions.cpp), but for the order of draws
/// that bf16 cannot tell apart. Drawn on the host: on a GPU it waits once, for the probabilities.
/// Floating dtypes (else Dtype). Not recorded. Throws Shape for other dimensions; InvalidArgument
/// for num_samples < 1, for a probability that is negative or not finite, for a row of which none
/// is above 0, and without replacement for more samples than are above 0.
Tensor multinomial(const Tensor& probabilities, std::int64_t num_samples, bool replacement = false,
                   Generator* generator = nullptr);

/// The draws of one row into `drawn`. Without replacement those of weight 0 come last, in their
/// order. The caller has checked all that multinomial() checks but for the last: drawn may be as
/// long as weights.
template <class T>
void draw_by_weight(std::span<const T> weights, bool replacement, Generator& generator,
                    std::span<std::int64_t> drawn);

}  // namespace weft
