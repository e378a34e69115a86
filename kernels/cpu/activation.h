// Activations that follow a convolution or a matrix product.
#pragma once

#include "weft/kernels/activation.h"
#include "weft/kernels/view.h"

namespace weft::cpu {

/// Applies `then` to n values that follow each other: those that a kernel has just written and that
/// are in the cache.
void activate(Activation then, DType dtype, std::int64_t n, void* values);
/// The same for a whole dense result, by the team.
void activate(Activation then, const View& y);

}  // namespace weft::cpu
