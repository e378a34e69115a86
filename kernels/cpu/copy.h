// The entries of ElementwiseKernels that only move or compare elements.
#pragma once

#include "weft/kernels/backend.h"

namespace weft::cpu {

void compare(const Stream&, CompareOp op, const View& a, const View& b, const View& y);
void where(const Stream&, const View& condition, const View& a, const View& b, const View& y);
void copy(const Stream&, const View& x, const View& y);
void copy_all(const Stream&, std::span<const CopyPair> pairs);
void fill(const Stream&, double value, const View& y);
void arange(const Stream&, double start, double step, const View& y);

}  // namespace weft::cpu
