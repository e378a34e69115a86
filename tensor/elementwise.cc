// Element-wise operations. Equal, dense operands are passed to the kernel as one row each, which
// is the whole cost of the common case; everything else is broadcast by strides.
#include <cmath>
#include <limits>

#include "weft/tensor/creation.h"
#include "weft/tensor/internal.h"
#include "weft/tensor/op_info.h"
#include "weft/tensor/ops.h"

namespace weft::raw {

using namespace internal;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool equal_and_dense(const Tensor& a, const Tensor& b) { return same_layout(a, b) && a.is_dense(); }

template <class Entry>
Entry elementwise(const char* op, Device device, DType dtype, Entry ElementwiseKernels::* entry) {
  return kernel(device, &KernelTable::elementwise, entry, op, dtype);
}

}  // namespace

void internal::check_divisor(BinaryOp op, const char* name, const Tensor& b) {
  if (op != BinaryOp::remainder && op != BinaryOp::floor_divide) return;
  if (is_floating(b.dtype()) || b.numel() == 0) return;
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
  // In the layout of the forward pass: what comes next in backward made its choice there.
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
  const bool alone = grad_y.impl()->use_count() == 1 && grad_y.storage()->use_count() == 1 &&
                     grad_y.storage()->owned();
  const Tensor& like = saved.defined() ? saved : grad_y;
  if (!alone || grad_y.dtype() != like.dtype() || !is_floating(like.dtype()) ||
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
  check_divisor(op, name, b);
  const Span span("op", name);
  const Device device = a.device();
  const auto run = elementwise(name, device, dtype, &ElementwiseKernels::binary);
  if (equal_and_dense(a, b)) [[likely]] {
    Tensor y = allocate(a.shape(), a.strides(), dtype, device);
    const std::int64_t n = y.numel();
    if (n > 0) {
      run(current_stream(device), op, flat_view(a, n), flat_view(b, n), flat_view(y, n));
    }
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

Tensor compare(CompareOp op, const Tensor& a, const Tensor& b) {
  const char* name = name_of(op);
  check_same_device(name, "a", a, "b", b);
  if (a.dtype() != b.dtype()) [[unlikely]] {
    const DType dtype = result_type(a, b);
    return compare(op, cast(a, dtype), cast(b, dtype));
  }
  const Span span("op", name);
  const Device device = a.device();
  const auto run = elementwise(name, device, a.dtype(), &ElementwiseKernels::compare);
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
  const auto run = elementwise("where", device, a.dtype(), &ElementwiseKernels::where);
  const Shape shape =
      broadcast_shapes(broadcast_shapes(a.shape(), b.shape(), "where"), condition.shape(), "where");
  Tensor y = allocate(shape, result_strides(shape, {&a, &b, &condition}), a.dtype(), device);
  if (y.numel() > 0) {
    run(current_stream(device), broadcast_view(condition, shape), broadcast_view(a, shape),
        broadcast_view(b, shape), y.view_of());
  }
  return y;
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
#define X(value, name, ...) \
  Tensor name(const Tensor& a, const Tensor& b) { return compare(CompareOp::value, a, b); }
WEFT_COMPARE_OPS(X)
#undef X

namespace {

bool is_int64(double value) {
  return value >= -0x1p63 && value < 0x1p63 && std::trunc(value) == value;
}

// The dtype of an operation of a tensor with a number: a floating tensor keeps its own, an integer
// one too unless the number is none, and a truth value counts as i64.
DType with_scalar(DType dtype, double value) {
  if (is_floating(dtype)) return dtype;
  if (!is_int64(value)) return DType::f32;
  return dtype == DType::boolean ? DType::i64 : dtype;
}

// `name` is the user's: add, not add_scalar.
Tensor scalar_op(const char* name, UnaryOp op, const char* operand, const Tensor& a, double value) {
  check_defined(name, operand, a);
  return unary(op, cast(a, with_scalar(a.dtype(), value)), {.a = value});
}

Tensor binary_with_scalar(BinaryOp op, const Tensor& a, double value) {
  check_defined(info(op).name, "a", a);
  const DType dtype = compute_dtype(op, with_scalar(a.dtype(), value));
  // As in PyTorch, a quotient takes a number beyond a floating dtype as infinity. But an extreme
  // may be the number itself.
  const bool is_result = op == BinaryOp::maximum || op == BinaryOp::minimum;
  if (is_result || !is_floating(dtype)) check_holds(info(op).name, value, dtype);
  return binary(op, cast(a, dtype), constant(value, dtype, a.device()));
}

// Where both sides of a comparison mean what they say: 255 (u8) is not -1, and 1 (i64) < 1.5.
DType compare_dtype(DType dtype, double value) {
  if (is_floating(dtype)) return dtype;
  if (!is_int64(value)) return DType::f64;
  return dtype != DType::boolean && holds(dtype, value) ? dtype : DType::i64;
}

Tensor compare_with_scalar(CompareOp op, const Tensor& a, double value) {
  check_defined(name_of(op), "a", a);
  const DType dtype = compare_dtype(a.dtype(), value);
  return compare(op, cast(a, dtype), constant(value, dtype, a.device()));
}

// Division by it is multiplication by its inverse, to the last bit and in every dtype.
bool is_power_of_two(double value) {
  int exponent = 0;
  return std::abs(std::frexp(value, &exponent)) == 0.5 && exponent > -100 && exponent < 100;
}

}  // namespace

Tensor add(const Tensor& a, double b) { return scalar_op("add", UnaryOp::add_scalar, "a", a, b); }
Tensor sub(const Tensor& a, double b) { return scalar_op("sub", UnaryOp::add_scalar, "a", a, -b); }
Tensor sub(double a, const Tensor& b) { return scalar_op("sub", UnaryOp::rsub_scalar, "b", b, a); }
Tensor mul(const Tensor& a, double b) { return scalar_op("mul", UnaryOp::mul_scalar, "a", a, b); }
Tensor div(const Tensor& a, double b) {
  check_defined("div", "a", a);
  if (is_power_of_two(b)) {
    const Tensor floating = is_floating(a.dtype()) ? a : cast(a, DType::f32);
    return scalar_op("div", UnaryOp::mul_scalar, "a", floating, 1 / b);
  }
  return binary_with_scalar(BinaryOp::div, a, b);
}
Tensor div(double a, const Tensor& b) { return scalar_op("div", UnaryOp::rdiv_scalar, "b", b, a); }
Tensor pow(const Tensor& a, double b) {
  check_defined("pow", "a", a);
  const DType dtype = with_scalar(a.dtype(), b);
  WEFT_CHECK(is_floating(dtype) || b >= 0, InvalidArgument, "pow", "a tensor of ", a.dtype(),
             " to the power ", b, " is no tensor of ", dtype, "; convert it with to(dtype)");
  return scalar_op("pow", UnaryOp::pow_scalar, "a", a, b);
}
Tensor maximum(const Tensor& a, double b) { return binary_with_scalar(BinaryOp::maximum, a, b); }
Tensor minimum(const Tensor& a, double b) { return binary_with_scalar(BinaryOp::minimum, a, b); }
Tensor remainder(const Tensor& a, double b) {
  return binary_with_scalar(BinaryOp::remainder, a, b);
}
Tensor floor_divide(const Tensor& a, double b) {
  return binary_with_scalar(BinaryOp::floor_divide, a, b);
}

#define X(value, name, ...) \
  Tensor name(const Tensor& a, double b) { return compare_with_scalar(CompareOp::value, a, b); }
WEFT_COMPARE_OPS(X)
#undef X

Tensor logical_not(const Tensor& x) {
  check_defined("logical_not", "x", x);
  return eq(x, 0);
}

Tensor leaky_relu(const Tensor& x, double negative_slope) {
  WEFT_CHECK(negative_slope >= 0, InvalidArgument, "leaky_relu", "negative_slope: got ",
             negative_slope, ", expected 0 or more");
  return unary(UnaryOp::leaky_relu, x, {.a = negative_slope});
}

Tensor elu(const Tensor& x, double alpha) { return unary(UnaryOp::elu, x, {.a = alpha}); }

Tensor softplus(const Tensor& x, double beta, double threshold) {
  WEFT_CHECK(beta > 0, InvalidArgument, "softplus", "beta: got ", beta, ", expected more than 0");
  return unary(UnaryOp::softplus, x, {.a = beta, .b = threshold});
}

Tensor smooth_l1(const Tensor& x, double beta) {
  WEFT_CHECK(beta >= 0, InvalidArgument, "smooth_l1", "beta: got ", beta, ", expected 0 or more");
  return unary(UnaryOp::smooth_l1, x, {.a = beta});
}

Tensor clamp(const Tensor& x, std::optional<double> min, std::optional<double> max) {
  check_defined("clamp", "x", x);
  WEFT_CHECK(min || max, InvalidArgument, "clamp", "needs a bound: min, max or both");
  const bool narrow = x.dtype() == DType::u8 || x.dtype() == DType::i32;
  const double least = x.dtype() == DType::u8 ? 0 : std::numeric_limits<std::int32_t>::min();
  const double most = x.dtype() == DType::u8 ? 255 : std::numeric_limits<std::int32_t>::max();
  // A bound that is not there, or beyond every value, is the last value of those.
  const double low =
      narrow && min.value_or(-kInfinity) < -0x1p63 ? least : min.value_or(-kInfinity);
  const double high = narrow && max.value_or(kInfinity) >= 0x1p63 ? most : max.value_or(kInfinity);
  if (std::isnan(low) || std::isnan(high)) {
    const Tensor y = empty_like(cast(x, is_floating(x.dtype()) ? x.dtype() : DType::f32));
    return fill_(y, std::numeric_limits<double>::quiet_NaN());
  }
  const UnaryParams bounds{.a = low, .b = high};
  if (is_floating(x.dtype())) {
    check_holds("clamp", low, x.dtype());
    check_holds("clamp", high, x.dtype());
    return unary(UnaryOp::clamp, x, bounds);
  }
  if (is_int64(low) && is_int64(high)) {
    if (!narrow || (holds(x.dtype(), low) && holds(x.dtype(), high))) {
      return unary(UnaryOp::clamp, x, bounds);
    }
    // A bound that the dtype does not hold must not be converted to it.
    WEFT_CHECK(std::min(low, high) <= most && high >= least, InvalidArgument, "clamp", "no ",
               x.dtype(), " lies within the bounds ", low, " and ", high,
               "; convert the tensor with to(dtype)");
    return cast(unary(UnaryOp::clamp, cast(x, DType::i64), bounds), x.dtype());
  }
  // A bound beyond every integer, infinity for one, does not bite and must not be converted.
  const bool no_low = low < -0x1p63;
  const bool no_high = high >= 0x1p63;
  if (no_low && no_high) return clone(x);
  if (no_low && is_int64(high)) return minimum(x, high);
  if (no_high && is_int64(low)) return maximum(x, low);
  return unary(UnaryOp::clamp, cast(x, DType::f32), bounds);
}

}  // namespace weft::raw
