// Element-wise operations of a tensor with a number, or with others as parameters.
#include <algorithm>
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

bool is_int64(double value) {
  return value >= -0x1p63 && value < 0x1p63 && std::trunc(value) == value;
}

// `name` is the user's: add, not add_scalar.
Tensor scalar_op(const char* name, UnaryOp op, const char* operand, const Tensor& a, double value) {
  check_defined(name, operand, a);
  return unary(op, cast(a, result_type(a.dtype(), value)), {.a = value});
}

Tensor binary_with_scalar(BinaryOp op, const Tensor& a, double value) {
  check_defined(info(op).name, "a", a);
  const DType dtype = compute_dtype(op, result_type(a.dtype(), value));
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

DType result_type(DType dtype, double number) {
  if (is_floating(dtype)) return dtype;
  if (!is_int64(number)) return DType::f32;
  return dtype == DType::boolean ? DType::i64 : dtype;
}

Tensor add(const Tensor& a, double b) { return scalar_op("add", UnaryOp::add_scalar, "a", a, b); }
Tensor sub(const Tensor& a, double b) {
  check_defined("sub", "a", a);
  const DType dtype = result_type(a.dtype(), b);
  return unary(UnaryOp::add_scalar, cast(a, dtype), {.a = negated(b, dtype)});
}
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
  const DType dtype = result_type(a.dtype(), b);
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
