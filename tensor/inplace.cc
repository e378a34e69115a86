// Writes into existing tensors. Every temporary is allocated before the first write, so that
// running out of memory leaves all operands as they were; every write bumps the version counter.
#include <cmath>
#include <limits>

#include "weft/tensor/elementwise.h"
#include "weft/tensor/internal.h"
#include "weft/tensor/op_info.h"
#include "weft/tensor/ops.h"

namespace weft::raw {

using namespace internal;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void check_broadcasts_to(const char* op, const Tensor& x, const Tensor& y) {
  bool fits = x.dim() <= y.dim();
  for (int i = 1; fits && i <= x.dim(); ++i) {
    const std::int64_t n = x.shape()[x.dim() - i];
    fits = n == 1 || n == y.shape()[y.dim() - i];
  }
  WEFT_CHECK(fits, Shape, op, "got ", x.shape(),
             ", which does not broadcast to the written tensor's ", y.shape());
}

void check_keeps_kind(const char* op, DType result, DType target) {
  const bool fits = is_floating(target) ||
                    (!is_floating(result) && (target != DType::boolean || result == target));
  WEFT_CHECK(fits, Dtype, op, "the result is ", result,
             ", which cannot be written into a tensor of ", target,
             "; use the form that returns a new tensor, or to(dtype)");
}

}  // namespace

const Tensor& unary_(UnaryOp op, const Tensor& y, UnaryParams params) {
  const char* name = info(op).in_place;
  const Span span("op", name);
  check_defined(name, "the written tensor", y);
  check_not_boolean(op, name, y.dtype());
  check_keeps_kind(name, compute_dtype(op, y.dtype()), y.dtype());
  check_params(name, params, y.dtype());
  check_writable(name, y);
  const Device device = y.device();
  const auto run =
      kernel(device, &KernelTable::elementwise, &ElementwiseKernels::unary, name, y.dtype());
  const std::int64_t n = y.numel();
  if (n == 0) return y;
  const View view = y.is_dense() ? flat_view(y, n) : y.view_of();
  y.storage()->bump_version();
  run(current_stream(device), op, params, view, view);
  return y;
}

const Tensor& binary_(BinaryOp op, const Tensor& y, const Tensor& b) {
  const char* name = info(op).in_place;
  check_same_device(name, "the written tensor", y, "the operand", b);
  check_broadcasts_to(name, b, y);
  check_writable(name, y);
  const DType dtype = compute_dtype(op, y.dtype() == b.dtype() ? y.dtype() : result_type(y, b));
  check_not_boolean(op, name, dtype);
  check_keeps_kind(name, dtype, y.dtype());
  if (y.dtype() != dtype) return copy_(y, binary(op, y, b));
  const Tensor other = disjoint(cast(b, dtype), y);
  check_divisor(op, name, y, other);
  const Span span("op", name);
  const Device device = y.device();
  const auto run =
      kernel(device, &KernelTable::elementwise, &ElementwiseKernels::binary, name, dtype);
  const std::int64_t n = y.numel();
  if (n == 0) return y;
  y.storage()->bump_version();
  if (same_layout(y, other) && y.is_dense()) {
    const View view = flat_view(y, n);
    run(current_stream(device), op, view, flat_view(other, n), view);
  } else {
    const View view = y.view_of();
    run(current_stream(device), op, view, broadcast_view(other, y.shape()), view);
  }
  return y;
}

namespace {

// y += alpha x for a floating y, whose device can read x.
const Tensor& add_readable(const Tensor& y, double alpha, const Tensor& x) {
  check_broadcasts_to("add_", x, y);
  check_writable("add_", y);
  const DType dtype = y.dtype() == x.dtype() ? y.dtype() : result_type(y, x);
  // A wider x is not rounded before the sum.
  if (dtype != y.dtype()) return copy_(y, add_readable(cast(y, dtype), alpha, x));
  const Tensor other = disjoint(cast(x, dtype), y);
  const Span span("op", "add_");
  const Device device = y.device();
  const auto run =
      kernel(device, &KernelTable::elementwise, &ElementwiseKernels::add_scaled, "add_", y.dtype());
  const std::int64_t n = y.numel();
  if (n == 0) return y;
  y.storage()->bump_version();
  if (same_layout(y, other) && y.is_dense()) {
    run(current_stream(device), alpha, flat_view(other, n), flat_view(y, n));
  } else {
    run(current_stream(device), alpha, broadcast_view(other, y.shape()), y.view_of());
  }
  return y;
}

}  // namespace

const Tensor& add_scaled_(const Tensor& y, double alpha, const Tensor& x) {
  check_same_device("add_", "the written tensor", y, "the operand", x);
  if (!is_floating(y.dtype())) return binary_(BinaryOp::add, y, alpha == 1 ? x : mul(x, alpha));
  return add_readable(y, alpha, x);
}

const Tensor& add_from_afar_(const Tensor& y, const Tensor& x) {
  check_defined("add_", "the written tensor", y);
  check_defined("add_", "the operand", x);
  // All CPU devices share one memory.
  const bool readable = y.device().is_cpu() && x.device().is_cpu() && is_floating(y.dtype());
  return readable ? add_readable(y, 1, x) : add_scaled_(y, 1, to(x, y.device()));
}

namespace {

void check_number(const char* op, const Tensor& y, double value) {
  check_defined(op, "the written tensor", y);
  if (!is_floating(y.dtype())) {
    // As in PyTorch, integers beyond y's dtype are allowed: sums and products are modulo 2^bits.
    if (!(value >= -0x1p63 && value < 0x1p63)) check_holds(op, value, y.dtype());
    WEFT_CHECK(std::trunc(value) == value && y.dtype() != DType::boolean, Dtype, op, "a tensor of ",
               y.dtype(), " cannot take the number ", value);
  }
}

}  // namespace

const Tensor& mul_(const Tensor& y, double value) {
  check_number("mul_", y, value);
  return unary_(UnaryOp::mul_scalar, y, {.a = value});
}

const Tensor& add_(const Tensor& y, double value) {
  check_number("add_", y, value);
  return unary_(UnaryOp::add_scalar, y, {.a = value});
}

const Tensor& sub_(const Tensor& y, double value) {
  check_number("sub_", y, value);
  return unary_(UnaryOp::add_scalar, y, {.a = negated(value, y.dtype())});
}

const Tensor& div_(const Tensor& y, double value) {
  check_defined("div_", "the written tensor", y);
  check_keeps_kind("div_", compute_dtype(BinaryOp::div, y.dtype()), y.dtype());
  return binary_(BinaryOp::div, y, constant(value, y.dtype(), y.device()));
}

const Tensor& clamp_(const Tensor& y, std::optional<double> min, std::optional<double> max) {
  check_writable("clamp_", y);
  const double low = min.value_or(-kInfinity), high = max.value_or(kInfinity);
  if (is_floating(y.dtype()) && (min || max) && !std::isnan(low) && !std::isnan(high)) {
    check_holds("clamp_", low, y.dtype());
    check_holds("clamp_", high, y.dtype());
    return unary_(UnaryOp::clamp, y, {.a = low, .b = high});
  }
  const Tensor result = clamp(y, min, max);
  check_keeps_kind("clamp_", result.dtype(), y.dtype());
  return copy_(y, result);
}

const Tensor& internal::fill(const Tensor& y, double value) {
  const Span span("op", "fill_");
  const Device device = y.device();
  const auto run =
      kernel(device, &KernelTable::elementwise, &ElementwiseKernels::fill, "fill_", y.dtype());
  const std::int64_t n = y.numel();
  if (n == 0) return y;
  y.storage()->bump_version();
  run(current_stream(device), value, y.is_dense() ? flat_view(y, n) : y.view_of());
  return y;
}

const Tensor& fill_(const Tensor& y, double value) {
  check_writable("fill_", y);
  check_holds("fill_", value, y.dtype());
  return fill(y, value);
}

const Tensor& zero_(const Tensor& y) {
  check_writable("zero_", y);
  if (!y.is_dense()) return fill(y, 0);
  const std::int64_t n = y.numel();
  if (n == 0) return y;
  const Span span("op", "zero_");
  const Device device = y.device();
  y.storage()->bump_version();
  runtime(device).fill_zero(y.raw_data(), y.numel() * size_of(y.dtype()), current_stream(device));
  return y;
}

namespace {

// A copy from another device of the same kind has that device's number in the trace.
void note_source(Span& span, const Tensor& y, const Tensor& x) {
  if (y.device().type == x.device().type && y.device() != x.device())
    span.set_arg("from", x.device().index);
}

}  // namespace

const Tensor& copy_(const Tensor& y, const Tensor& x) {
  check_defined("copy_", "the written tensor", y);
  check_defined("copy_", "the operand", x);
  check_broadcasts_to("copy_", x, y);
  check_writable("copy_", y);
  const bool one_memory = y.device() == x.device() || (y.device().is_cpu() && x.device().is_cpu());
  if (!one_memory) {
    // The smaller data is copied between the devices: x before expansion, in the smaller of the two
    // dtypes.
    if (size_of(y.dtype()) < size_of(x.dtype())) return copy_(y, cast(x, y.dtype()));
    const bool block = x.dtype() == y.dtype() && same_layout(x, y) && x.is_dense();
    if (!block) return copy_(y, to(x, y.device()));
    if (y.numel() == 0) return y;
    Span span("op", "copy_");
    note_source(span, y, x);
    y.storage()->bump_version();
    copy_block(y, x);
    return y;
  }
  const Tensor from = disjoint(x, y);
  Span span("op", "copy_");
  note_source(span, y, x);
  const Device device = y.device();
  const auto run =
      kernel(device, &KernelTable::elementwise, &ElementwiseKernels::copy, "copy_", y.dtype());
  const std::int64_t n = y.numel();
  if (n == 0) return y;
  y.storage()->bump_version();
  if (same_layout(y, from) && y.is_dense()) {
    run(current_stream(device), flat_view(from, n), flat_view(y, n));
  } else {
    run(current_stream(device), broadcast_view(from, y.shape()), y.view_of());
  }
  return y;
}

}  // namespace weft::raw
