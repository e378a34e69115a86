// Element-wise operations. Equal, dense operands are passed to the kernel as one row each, which
// is the whole cost of the common case; everything else is broadcast by strides.
#include "weft/tensor/elementwise.h"

#include "weft/tensor/internal.h"
#include "weft/tensor/op_info.h"
#include "weft/tensor/ops.h"

namespace weft::raw {

using namespace internal;

namespace {

bool equal_and_dense(const Tensor& a, const Tensor& b) { return same_layout(a, b) && a.is_dense(); }

template <class Entry>
Entry elementwise(const char* op, Device device, DType dtype, Entry ElementwiseKernels::* entry) {
  return kernel(device, &KernelTable::elementwise, entry, op, dtype);
}

}  // namespace

void internal::check_divisor(BinaryOp op, const char* name, const Tensor& a, const Tensor& b) {
  if (op != BinaryOp::remainder && op != BinaryOp::floor_divide) return;
  if (is_floating(b.dtype()) || b.numel() == 0) return;
  broadcast_shapes(a.shape(), b.shape(), name);  // a wrong shape is the first mistake to tell
  graph::check_not_capturing(name, "the host waits to see whether a divisor is 0");
  WEFT_CHECK(all(b).item<bool>(), InvalidArgument, name, "division by 0 of integers (", b.dtype(),
             "), which have no value for it");
}

Tensor unary(UnaryOp op, const Tensor& x, UnaryParams params) {
  const OpInfo& about = info(op);
  check_defined(about.name, "x", x);
  const DType dtype = compute_dtype(op, x.dtype());
  check_not_boolean(op, about.name, dtype);
  if (x.dtype() != dtype) [[unlikely]]
    return unary(op, cast(x, dtype), params);
  check_params(about.name, params, dtype);
  const Span span("op", about.name);
  const Device device = x.device();
  const auto run = elementwise(about.name, device, dtype, &ElementwiseKernels::unary);
  const bool dense = x.is_dense();
  Tensor y =
      allocate(x.shape(), dense ? x.strides() : contiguous_strides(x.shape()), dtype, device);
  const std::int64_t n = y.numel();
  if (n == 0) return y;
  if (dense) {
    run(current_stream(device), op, params, flat_view(x, n), flat_view(y, n));
  } else {
    run(current_stream(device), op, params, x.view_of(), y.view_of());
  }
  return y;
}

Tensor unary_backward(UnaryOp op, const Tensor& grad_y, const Tensor& saved, UnaryParams params) {
  const char* name = info(op).name;
  const Span span("op", name);
  check_floating(name, "the gradient", grad_y);
  if (info(op).saves != Saves::nothing) check_defined(name, "the saved tensor", saved);
  const Device device = grad_y.device();
  const auto run = elementwise(name, device, grad_y.dtype(), &ElementwiseKernels::unary_backward);
  const Stream stream = current_stream(device);
  if (!saved.defined()) {
    Tensor grad_x = allocate_like(grad_y, grad_y.dtype(), device);
    if (grad_x.numel() > 0) run(stream, op, params, grad_y.view_of(), View(), grad_x.view_of());
    return grad_x;
  }
  check_same_kind(name, "gradient", grad_y, "saved tensor", saved);
  WEFT_CHECK(grad_y.shape() == saved.shape(), Shape, name, "gradient: got ", grad_y.shape(),
             ", saved tensor has ", saved.shape());
  if (equal_and_dense(saved, grad_y)) {
    Tensor grad_x = allocate(saved.shape(), saved.strides(), saved.dtype(), device);
    const std::int64_t n = grad_x.numel();
    if (n > 0) {
      run(stream, op, params, flat_view(grad_y, n), flat_view(saved, n), flat_view(grad_x, n));
    }
    return grad_x;
  }
  // In the layout of the forward pass: the next operation of backward chose its layout there.
  Tensor grad_x = allocate(saved.shape(), result_strides(saved.shape(), {&saved, &grad_y}),
                           saved.dtype(), device);
  if (grad_x.numel() > 0) {
    run(stream, op, params, grad_y.view_of(), saved.view_of(), grad_x.view_of());
  }
  return grad_x;
}

Tensor unary_backward(UnaryOp op, Tensor&& grad_y, const Tensor& saved, UnaryParams params) {
  check_defined(info(op).name, "the gradient", grad_y);
  if (info(op).saves != Saves::nothing) check_defined(info(op).name, "the saved tensor", saved);
  const Tensor& like = saved.defined() ? saved : grad_y;
  if (!is_alone(grad_y) || grad_y.dtype() != like.dtype() || !is_floating(like.dtype()) ||
      grad_y.device() != like.device() || !equal_and_dense(grad_y, like)) {
    return unary_backward(op, static_cast<const Tensor&>(grad_y), saved, params);
  }
  const char* name = info(op).name;
  const Span span("op", name);
  const Device device = grad_y.device();
  const std::int64_t n = grad_y.numel();
  if (n > 0) {
    const View view = flat_view(grad_y, n);
    elementwise(name, device, grad_y.dtype(), &ElementwiseKernels::unary_backward)(
        current_stream(device), op, params, view, saved.defined() ? flat_view(saved, n) : View(),
        view);
  }
  return std::move(grad_y);
}

Tensor binary(BinaryOp op, const Tensor& a, const Tensor& b) {
  const OpInfo& about = info(op);
  const char* name = about.name;
  check_same_device(name, "a", a, "b", b);
  const DType dtype = compute_dtype(op, a.dtype() == b.dtype() ? a.dtype() : result_type(a, b));
  check_not_boolean(op, name, dtype);
  if (a.dtype() != dtype || b.dtype() != dtype) [[unlikely]] {
    return binary(op, cast(a, dtype), cast(b, dtype));
  }
  check_divisor(op, name, a, b);
  const Span span("op", name);
  const Device device = a.device();
  const auto run = elementwise(name, device, dtype, &ElementwiseKernels::binary);
  if (equal_and_dense(a, b)) [[likely]] {
    Tensor y = allocate(a.shape(), a.strides(), dtype, device);
    const std::int64_t n = y.numel();
    if (n > 0) run(current_stream(device), op, flat_view(a, n), flat_view(b, n), flat_view(y, n));
    return y;
  }
  const Shape shape =
      a.shape() == b.shape() ? a.shape() : broadcast_shapes(a.shape(), b.shape(), name);
  Tensor y = allocate(shape, result_strides(shape, {&a, &b}), dtype, device);
  if (y.numel() > 0) {
    run(current_stream(device), op, broadcast_view(a, shape), broadcast_view(b, shape),
        y.view_of());
  }
  return y;
}

Tensor binary_backward(BinaryOp op, bool of_b, const Tensor& grad_y, const Tensor& a,
                       const Tensor& b) {
  const char* name = info(op).name;
  const Span span("op", name);
  check_floating(name, "the gradient", grad_y);
  const Tensor& operand = of_b ? b : a;
  check_defined(name, of_b ? "b" : "a", operand);
  const DType dtype = grad_y.dtype();
  const auto to_operand = [&operand](const Tensor& grad) {
    return cast(sum_to(grad, operand.shape()), operand.dtype());
  };
  if (op == BinaryOp::add || (op == BinaryOp::sub && !of_b)) return to_operand(grad_y);
  if (op == BinaryOp::sub) return neg(to_operand(grad_y));

  check_defined(name, of_b ? "a" : "b", of_b ? a : b);
  check_same_device(name, "gradient", grad_y, "a", a);
  check_same_device(name, "gradient", grad_y, "b", b);
  if (a.dtype() != dtype || b.dtype() != dtype) [[unlikely]] {
    const Tensor grad = binary_backward(op, of_b, grad_y, cast(a, dtype), cast(b, dtype));
    return cast(grad, operand.dtype());
  }
  const Device device = grad_y.device();
  const auto run = elementwise(name, device, dtype, &ElementwiseKernels::binary_backward);
  const Stream stream = current_stream(device);
  if (same_layout(a, b) && equal_and_dense(a, grad_y)) [[likely]] {
    Tensor grad = allocate(a.shape(), a.strides(), dtype, device);
    const std::int64_t n = grad.numel();
    if (n > 0) {
      run(stream, op, of_b, flat_view(grad_y, n), flat_view(a, n), flat_view(b, n),
          flat_view(grad, n));
    }
    return grad;
  }
  const Shape shape = broadcast_shapes(a.shape(), b.shape(), name);
  WEFT_CHECK(grad_y.shape() == shape, Shape, name, "gradient: got ", grad_y.shape(),
             ", the operation gave ", shape);
  const Tensor grad = allocate(shape, result_strides(shape, {&operand, &grad_y}), dtype, device);
  if (grad.numel() > 0) {
    run(stream, op, of_b, grad_y.view_of(), broadcast_view(a, shape), broadcast_view(b, shape),
        grad.view_of());
  }
  return sum_to(grad, operand.shape());
}

// --- The named forms -----------------------------------------------------------------------------

#define X(value, name, ...) \
  Tensor name(const Tensor& x) { return unary(UnaryOp::value, x); }
WEFT_UNARY_OPS(X)
#undef X
#define X(value, name, ...) \
  Tensor name(const Tensor& a, const Tensor& b) { return binary(BinaryOp::value, a, b); }
WEFT_BINARY_OPS(X)
#undef X

}  // namespace weft::raw
