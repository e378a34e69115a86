// Comparisons, and choices by their results.
#include "weft/tensor/internal.h"
#include "weft/tensor/op_info.h"
#include "weft/tensor/ops.h"

namespace weft::raw {

using namespace internal;

Tensor compare(CompareOp op, const Tensor& a, const Tensor& b) {
  const char* name = name_of(op);
  check_same_device(name, "a", a, "b", b);
  if (a.dtype() != b.dtype()) [[unlikely]] {
    const DType dtype = result_type(a, b);
    return compare(op, cast(a, dtype), cast(b, dtype));
  }
  const Span span("op", name);
  const Device device = a.device();
  const auto run =
      kernel(device, &KernelTable::elementwise, &ElementwiseKernels::compare, name, a.dtype());
  const Shape shape = broadcast_shapes(a.shape(), b.shape(), name);
  Tensor y = allocate(shape, result_strides(shape, {&a, &b}), DType::boolean, device);
  if (y.numel() > 0) {
    run(current_stream(device), op, broadcast_view(a, shape), broadcast_view(b, shape),
        y.view_of());
  }
  return y;
}

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  check_defined("where", "condition", condition);
  WEFT_CHECK(condition.dtype() == DType::boolean, Dtype, "where", "condition: got ",
             condition.dtype(), ", expected bool");
  check_same_device("where", "condition", condition, "a", a);
  check_same_device("where", "a", a, "b", b);
  if (a.dtype() != b.dtype()) [[unlikely]] {
    const DType dtype = result_type(a, b);
    return where(condition, cast(a, dtype), cast(b, dtype));
  }
  const Span span("op", "where");
  const Device device = a.device();
  const auto run =
      kernel(device, &KernelTable::elementwise, &ElementwiseKernels::where, "where", a.dtype());
  const Shape shape =
      broadcast_shapes(broadcast_shapes(a.shape(), b.shape(), "where"), condition.shape(), "where");
  Tensor y = allocate(shape, result_strides(shape, {&a, &b, &condition}), a.dtype(), device);
  if (y.numel() > 0) {
    run(current_stream(device), broadcast_view(condition, shape), broadcast_view(a, shape),
        broadcast_view(b, shape), y.view_of());
  }
  return y;
}

#define X(value, name, ...) \
  Tensor name(const Tensor& a, const Tensor& b) { return compare(CompareOp::value, a, b); }
WEFT_COMPARE_OPS(X)
#undef X

}  // namespace weft::raw
