// Indexing and masks, recorded on the tape. tensor/ops.h has what is not said here.
#pragma once

#include <cstdint>
#include <optional>

#include "weft/tensor/ops.h"

namespace weft {

Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index);
Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& index);
// Equal indices are taken in their order, on CUDA too, so each run gives the same bits.
Tensor index_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source);
Tensor scatter_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source);
/// The gradient of source is that at its index, as in PyTorch: right where no two are equal.
Tensor scatter(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source);
Tensor scatter(const Tensor& x, std::int64_t dim, const Tensor& index, double value);
/// As raw::embedding. The row padding_idx of weight gets no gradient; a negative padding_idx counts
/// from the end. Throws InvalidArgument for a padding_idx that is no row.
Tensor embedding(const Tensor& index, const Tensor& weight,
                 std::optional<std::int64_t> padding_idx = {});
// Integers, without a gradient. nonzero waits once for the device.
using raw::nonzero;
using raw::one_hot;

// --- Masks: boolean ------------------------------------------------------------------------------
/// value where the mask is true, x elsewhere; broadcast, of x's dtype. Throws InvalidArgument if
/// that cannot hold value (raw::check_holds).
Tensor masked_fill(const Tensor& x, const Tensor& mask, double value);
/// With a tensor without dimensions, converted as by to(), whose gradient is the sum of those where
/// the mask is true. Throws Shape for one with dimensions, Dtype for a floating one if x is not.
Tensor masked_fill(const Tensor& x, const Tensor& mask, const Tensor& value);
/// The elements of x (broadcast with the mask) where the mask is true, 1-D, in row-major order.
/// Waits once for the device, which knows their number.
Tensor masked_select(const Tensor& x, const Tensor& mask);

}  // namespace weft
