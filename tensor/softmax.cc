#include <algorithm>

#include "weft/tensor/internal.h"
#include "weft/tensor/ops.h"

namespace weft::raw {

using namespace internal;

namespace {

const char* name_of(SoftmaxOp op) { return op == SoftmaxOp::softmax ? "softmax" : "log_softmax"; }

// x as [rows, n] for the kernels: row-major with the dimension innermost.
View rows_view(const Tensor& x) {
  const std::int64_t n = x.shape(-1);
  const Shape shape{x.numel() / n, n};
  return {x.raw_data(), x.dtype(), shape, contiguous_strides(shape)};
}

// x with `dim` last; a copy unless it already is innermost in memory. A scalar counts as one row of
// one.
Tensor with_dim_last(const Tensor& x, std::int64_t dim) {
  return contiguous(x.dim() == 0 ? reshape(x, {1}) : transpose(x, dim, -1));
}

// The inverse of with_dim_last.
Tensor with_dim_back(const Tensor& y, const Shape& shape, std::int64_t dim) {
  return shape.size() == 0 ? reshape(y, shape) : transpose(y, dim, -1);
}

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
