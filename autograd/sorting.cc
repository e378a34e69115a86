#include "weft/autograd/sorting.h"

#include <algorithm>
#include <utility>

#include "weft/autograd/internal.h"
#include "weft/core/base/shape.h"

namespace weft {

ValuesAndIndices sort(const Tensor& x, std::int64_t dim, bool descending, bool) {
  auto [values, indices] = raw::sort(x, dim, descending);
  return {autograd::record_gather("sort", std::move(values), x, dim, indices), indices};
}

Tensor argsort(const Tensor& x, std::int64_t dim, bool descending, bool) {
  return raw::argsort(x, dim, descending);
}

ValuesAndIndices topk(const Tensor& x, std::int64_t k, std::int64_t dim, bool largest, bool) {
  const char* op = "topk";
  autograd::check_defined(op, "x", x);
  dim = normalize_dim(dim, std::max(x.dim(), 1), op);
  const std::int64_t n = x.dim() == 0 ? 1 : x.shape()[dim];
  WEFT_CHECK(k >= 0 && k <= n, InvalidArgument, op, "k: got ", k, ", expected 0 to ", n,
             ", the length of dimension ", dim, " of ", x.shape());
  const Tensor order = raw::argsort(x, dim, largest);
  // A copy, so that the rest of `order` is freed.
  const Tensor indices = x.dim() == 0 ? order : raw::clone(raw::narrow(order, dim, 0, k));
  Tensor values = raw::gather(x, dim, indices, false);
  return {autograd::record_gather(op, std::move(values), x, dim, indices), indices};
}

}  // namespace weft
