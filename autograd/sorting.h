// Sorting, recorded on the tape. tensor/ops.h has what is not said here.
#pragma once

#include <cstdint>
#include <optional>

#include "weft/tensor/ops.h"

namespace weft {

/// The gradient of values goes to the elements at indices. The order is that of a stable sort, also
/// without `stable`, which is there for programs that come from PyTorch.
ValuesAndIndices sort(const Tensor& x, std::int64_t dim = -1, bool descending = false,
                      bool stable = false);
/// sort(x, dim, descending).indices. Not recorded.
Tensor argsort(const Tensor& x, std::int64_t dim = -1, bool descending = false,
               bool stable = false);
/// The k largest elements of a dimension, or the smallest ones, and where they were: the first k of
/// sort(x, dim, largest), also without `sorted`, as torch.topk. Throws InvalidArgument unless k is
/// 0 to the dimension's length. A tensor without dimensions gives itself.
ValuesAndIndices topk(const Tensor& x, std::int64_t k, std::int64_t dim = -1, bool largest = true,
                      bool sorted = true);
/// The gradient of values goes to the elements at indices.
ValuesAndIndices median(const Tensor& x, std::int64_t dim, bool keepdim = false);
/// The elements equal to the median share its gradient, as in PyTorch.
Tensor median(const Tensor& x);

// Not recorded: integers, and values whose gradients PyTorch does not have either. bincount and
// unique wait once for the device.
using raw::bincount;
using raw::searchsorted;
/// Always sorted, also without `sorted`.
UniqueElements unique(const Tensor& x, bool sorted = true, bool return_inverse = false,
                      bool return_counts = false, std::optional<std::int64_t> dim = {});

}  // namespace weft
