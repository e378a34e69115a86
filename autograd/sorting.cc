#include "weft/autograd/sorting.h"

#include <algorithm>
#include <utility>

#include "weft/autograd/internal.h"
#include "weft/core/base/shape.h"

namespace weft {

using autograd::observed;

ValuesAndIndices sort(const Tensor& x, std::int64_t dim, bool descending, bool) {
  auto [values, indices] = raw::sort(x, dim, descending);
  return {autograd::record_gather("sort", std::move(values), x, dim, indices),
          observed("sort", {}, indices, x)};
}

Tensor argsort(const Tensor& x, std::int64_t dim, bool descending, bool) {
  return observed("argsort", {}, raw::argsort(x, dim, descending), x);
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
  values = autograd::record_gather(op, std::move(values), x, dim, indices);
  return {values, observed(op, {}, indices, x)};
}

ValuesAndIndices median(const Tensor& x, std::int64_t dim, bool keepdim) {
  auto [values, indices] = raw::median(x, dim, true);
  values = autograd::record_gather("median", std::move(values), x, dim, indices);
  if (keepdim || x.dim() == 0) return {values, observed("median", {}, indices, x)};
  return {values.squeeze(dim), observed("median", {}, raw::squeeze(indices, dim), x)};
}

Tensor median(const Tensor& x) { return autograd::record_choice("median", raw::median(x), x); }

UniqueElements unique(const Tensor& x, bool, bool return_inverse, bool return_counts,
                      std::optional<std::int64_t> dim) {
  return raw::unique(x, return_inverse, return_counts, dim);
}

}  // namespace weft
