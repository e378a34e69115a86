// Activations that follow a convolution or a matrix product.
#pragma once

#include "weft/core/runtime/parallel.h"
#include "weft/kernels/activation.h"
#include "weft/kernels/cpu/loop.h"
#include "weft/kernels/cpu/loops/elementwise.h"

namespace weft::cpu {

/// Applies `then` to n values that follow each other: those that a kernel has just written and that
/// are in the cache.
inline void activate(Activation then, DType dtype, std::int64_t n, void* values) {
  if (then == Activation::none) return;
  char* const data[] = {static_cast<char*>(values), static_cast<char*>(values)};
  const UnaryParams params{};
  elementwise_loops().of(dtype).unary[int(UnaryOp::relu)](n, data, &params);
}

/// The same for a whole dense result, by the team.
inline void activate(Activation then, const View& y) {
  if (then == Activation::none) return;
  parallel_for(y.numel(), kCheapGrain, [&](std::int64_t begin, std::int64_t end) {
    char* const from = y.as<char>() + begin * std::int64_t(size_of(y.dtype));
    activate(then, y.dtype, end - begin, from);
  });
}

}  // namespace weft::cpu
