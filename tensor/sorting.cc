#include <algorithm>

#include "weft/tensor/internal.h"
#include "weft/tensor/ops.h"

namespace weft::raw {

using namespace internal;

namespace {

ValuesAndIndices sorted(const char* op, const Tensor& x, std::int64_t dim, bool descending,
                        bool wants_values) {
  check_defined(op, "x", x);
  dim = normalize_dim(dim, std::max(x.dim(), 1), op);
  const Span span("op", op);
  const Device device = x.device();
  const auto workspace_bytes =
      kernel(device, &KernelTable::sorting, &SortingKernels::workspace_bytes, op, x.dtype());
  const auto run = kernel(device, &KernelTable::sorting, &SortingKernels::sort, op, x.dtype());
  const Tensor rows = with_dim_last(x, dim);
  const Tensor values = wants_values ? allocate(rows.shape(), x.dtype(), device) : Tensor();
  const Tensor indices = allocate(rows.shape(), DType::i64, device);
  if (rows.numel() > 0) {
    const View from = rows_view(rows);
    const Stream& stream = current_stream(device);
    const Workspace workspace(device, workspace_bytes(stream, from));
    run(stream, descending, from, wants_values ? rows_view(values) : View{}, rows_view(indices),
        workspace.data());
  }
  return {wants_values ? with_dim_back(values, x.shape(), dim) : Tensor(),
          with_dim_back(indices, x.shape(), dim)};
}

}  // namespace

ValuesAndIndices sort(const Tensor& x, std::int64_t dim, bool descending) {
  return sorted("sort", x, dim, descending, true);
}

Tensor argsort(const Tensor& x, std::int64_t dim, bool descending) {
  return sorted("argsort", x, dim, descending, false).indices;
}

}  // namespace weft::raw
