// Arithmetic element by element: finds the loop for operation and dtype and runs it.
#include "weft/kernels/cpu/families.h"
#include "weft/kernels/cpu/loop.h"

namespace weft::cpu {
namespace {

const ElementwiseRows& rows_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return simd().f32.elementwise;
    case DType::f64: return simd().f64.elementwise;
    case DType::bf16: return simd().bf16.elementwise;
    default: return integer_rows(dtype);
  }
}

const char* name_of(UnaryOp op) {
  switch (op) {
#define X(value, ...) \
  case UnaryOp::value: return #value;
    WEFT_UNARY_OPS(X) WEFT_SCALAR_OPS(X)
#undef X
  }
  return "unary";
}

const char* name_of(BinaryOp op) {
  switch (op) {
#define X(value, ...) \
  case BinaryOp::value: return #value;
    WEFT_BINARY_OPS(X)
#undef X
  }
  return "binary";
}

std::int64_t grain_of(UnaryOp op) {
  switch (op) {
    case UnaryOp::exp:
    case UnaryOp::log:
    case UnaryOp::log1p:
    case UnaryOp::expm1:
    case UnaryOp::erf:
    case UnaryOp::tan:
    case UnaryOp::sin:
    case UnaryOp::cos:
    case UnaryOp::tanh:
    case UnaryOp::sigmoid:
    case UnaryOp::gelu:
    case UnaryOp::gelu_tanh:
    case UnaryOp::log_sigmoid:
    case UnaryOp::silu:
    case UnaryOp::elu:
    case UnaryOp::softplus:
    case UnaryOp::pow_scalar: return kCostlyGrain;
    default: return kCheapGrain;
  }
}

std::int64_t grain_of(BinaryOp op) {
  const bool costly =
      op == BinaryOp::pow || op == BinaryOp::remainder || op == BinaryOp::floor_divide;
  return costly ? kCostlyGrain : kCheapGrain;
}

void unary(const Stream& stream, UnaryOp op, UnaryParams params, const View& x, const View& y) {
  const RowFn f = rows_of(y.dtype).unary[static_cast<int>(op)];
  if (!f) throw_unsupported(name_of(op), stream.device, y.dtype);
  run_loop<2>({&y, &x}, grain_of(op), f, &params);
}

void unary_backward(const Stream& stream, UnaryOp op, UnaryParams params, const View& grad_y,
                    const View& saved, const View& grad_x) {
  const RowFn f = rows_of(grad_x.dtype).unary_backward[static_cast<int>(op)];
  if (!f) throw_unsupported(name_of(op), stream.device, grad_x.dtype);
  // What was not saved is not used; any operand of the right shape stands in for it.
  run_loop<3>({&grad_x, &grad_y, saved ? &saved : &grad_y}, grain_of(op), f, &params);
}

void binary(const Stream& stream, BinaryOp op, const View& a, const View& b, const View& y) {
  const RowFn f = rows_of(y.dtype).binary[static_cast<int>(op)];
  if (!f) throw_unsupported(name_of(op), stream.device, y.dtype);
  run_loop<3>({&y, &a, &b}, grain_of(op), f, nullptr);
}

void binary_backward(const Stream& stream, BinaryOp op, bool of_b, const View& grad_y,
                     const View& a, const View& b, const View& grad) {
  const RowFn f = rows_of(grad.dtype).binary_backward[static_cast<int>(op)][of_b];
  if (!f) throw_unsupported(name_of(op), stream.device, grad.dtype);
  run_loop<4>({&grad, &grad_y, a ? &a : &grad_y, b ? &b : &grad_y}, grain_of(op), f, nullptr);
}

void add_scaled(const Stream& stream, double alpha, const View& x, const View& y) {
  const RowFn f = rows_of(y.dtype).add_scaled;
  if (!f) throw_unsupported("add_scaled", stream.device, y.dtype);
  run_loop<3>({&y, &y, &x}, kCheapGrain, f, &alpha);
}

}  // namespace
}  // namespace weft::cpu

namespace weft {

ElementwiseKernels cpu_elementwise_kernels() {
  return {.unary = cpu::unary,
          .unary_backward = cpu::unary_backward,
          .binary = cpu::binary,
          .binary_backward = cpu::binary_backward,
          .compare = cpu::compare,
          .where = cpu::where,
          .copy = cpu::copy,
          .fill = cpu::fill,
          .add_scaled = cpu::add_scaled,
          .arange = cpu::arange};
}

}  // namespace weft
