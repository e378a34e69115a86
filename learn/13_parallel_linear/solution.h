// Exercise 13: what you write, and what you write it with.
#pragma once

#include "weft/autograd/ops.h"
#include "weft/learn/judge/messages.h"
#include "weft/parallel/collectives.h"

namespace weft::learn {

/// A linear layer y = x weight^T + bias whose outputs are cut: rank r has part r of n of weight's
/// rows, [out/n, in], and of the bias, [out/n]. x [.., in] is the same on all ranks. Returns part r
/// of y, [.., out/n].
Tensor column_parallel(const parallel::Collectives& ranks, const Tensor& x, const Tensor& weight,
                       const Tensor& bias);
/// One whose inputs are cut: rank r has part r of x, [.., in/n], and of weight's columns,
/// [out, in/n]. The bias [out] is the same on all ranks. Returns the whole y [.., out], the same on
/// all ranks.
Tensor row_parallel(const parallel::Collectives& ranks, const Tensor& x, const Tensor& weight,
                    const Tensor& bias);

}  // namespace weft::learn
