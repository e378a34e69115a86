#include <algorithm>

#include "weft/tensor/internal.h"
#include "weft/tensor/ops.h"

namespace weft::raw {

using namespace internal;

namespace {

Tensor scanned(const char* op, ScanOp kind, const Tensor& x, std::int64_t dim, bool reverse) {
  check_defined(op, "x", x);
  dim = normalize_dim(dim, std::max(x.dim(), 1), op);
  const Span span("op", op);
  const Device device = x.device();
  const auto workspace_bytes =
      kernel(device, &KernelTable::scan, &ScanKernels::workspace_bytes, op, x.dtype());
  const auto run = kernel(device, &KernelTable::scan, &ScanKernels::scan, op, x.dtype());
  const Tensor rows = with_dim_last(x, dim);
  const Tensor y = allocate(rows.shape(), is_floating(x.dtype()) ? x.dtype() : DType::i64, device);
  if (rows.numel() > 0) {
    const View from = rows_view(rows);
    const Workspace workspace(device, workspace_bytes(from));
    run(current_stream(device), kind, reverse, from, rows_view(y), workspace.data());
  }
  return with_dim_back(y, x.shape(), dim);
}

}  // namespace

Tensor cumsum(const Tensor& x, std::int64_t dim, bool reverse) {
  return scanned("cumsum", ScanOp::sum, x, dim, reverse);
}

Tensor cumprod(const Tensor& x, std::int64_t dim) {
  return scanned("cumprod", ScanOp::prod, x, dim, false);
}

}  // namespace weft::raw
