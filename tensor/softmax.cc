#include <algorithm>

#include "weft/tensor/internal.h"
#include "weft/tensor/ops.h"

namespace weft::raw {

using namespace internal;

namespace {

const char* name_of(SoftmaxOp op) { return op == SoftmaxOp::softmax ? "softmax" : "log_softmax"; }

Tensor softmax_forward(SoftmaxOp op, const Tensor& x, std::int64_t dim) {
  const char* name = name_of(op);
  check_floating(name, "x", x);
  dim = normalize_dim(dim, std::max(x.dim(), 1), name);
  const Span span("op", name);
  const Device device = x.device();
  const auto run = kernel(device, &KernelTable::softmax, &SoftmaxKernels::forward, name, x.dtype());
  const Tensor rows = with_dim_last(x, dim);
  const Tensor y = allocate(rows.shape(), x.dtype(), device);
  if (y.numel() > 0) run(current_stream(device), op, rows_view(rows), rows_view(y));
  return with_dim_back(y, x.shape(), dim);
}

}  // namespace

Tensor softmax(const Tensor& x, std::int64_t dim) {
  return softmax_forward(SoftmaxOp::softmax, x, dim);
}

Tensor log_softmax(const Tensor& x, std::int64_t dim) {
  return softmax_forward(SoftmaxOp::log_softmax, x, dim);
}

Tensor softmax_backward(SoftmaxOp op, const Tensor& grad_y, const Tensor& y, std::int64_t dim) {
  const char* name = name_of(op);
  check_floating(name, "y", y);
  check_same_kind(name, "gradient", grad_y, "y", y);
  WEFT_CHECK(grad_y.shape() == y.shape(), Shape, name, "gradient: got ", grad_y.shape(), ", y is ",
             y.shape());
  dim = normalize_dim(dim, std::max(y.dim(), 1), name);
  const Span span("op", name);
  const Device device = y.device();
  const auto run =
      kernel(device, &KernelTable::softmax, &SoftmaxKernels::backward, name, y.dtype());
  const Tensor rows = with_dim_last(y, dim), grad_rows = with_dim_last(grad_y, dim);
  const Tensor grad_x = allocate(rows.shape(), y.dtype(), device);
  if (grad_x.numel() > 0) {
    run(current_stream(device), op, rows_view(grad_rows), rows_view(rows), rows_view(grad_x));
  }
  return with_dim_back(grad_x, y.shape(), dim);
}

}  // namespace weft::raw
