// Element-wise arithmetic: finds the loop for an operation and dtype and runs it.
#include "weft/kernels/cpu/loops/elementwise.h"
#include "weft/kernels/cpu/copy.h"
#include "weft/kernels/cpu/loop.h"
#include "weft/kernels/elementwise_list.h"

namespace weft::cpu {
namespace {

// The integer types are computed in i64. They are for indices, labels and masks, so one instruction
// set is enough.

template <class T, class F, bool has_integers>
constexpr RowFn unary_entry() {
  if constexpr (has_integers)
    return unary_row<T, F>;
  else
    return nullptr;
}

template <class T, class F, bool has_integers>
constexpr RowFn binary_entry() {
  if constexpr (has_integers)
    return binary_row<T, F>;
  else
    return nullptr;
}

template <class T>
constexpr ElementwiseLoops make_loops() {
  ElementwiseLoops loops;
#define X(value, name, F, integers, ...) \
  loops.unary[static_cast<int>(UnaryOp::value)] = unary_entry<T, functor::F, integers>();
  WEFT_UNARY_OPS(X)
#undef X
#define X(value, F, integers) \
  loops.unary[static_cast<int>(UnaryOp::value)] = unary_entry<T, functor::F, integers>();
  WEFT_SCALAR_OPS(X)
#undef X
#define X(value, name, F, integers, ...) \
  loops.binary[static_cast<int>(BinaryOp::value)] = binary_entry<T, functor::F, integers>();
  WEFT_BINARY_OPS(X)
#undef X
  return loops;
}

template <class T>
constexpr ElementwiseLoops integer_loops = make_loops<T>();

template <class Pick>
RowFn loop_of(DType dtype, const Pick& pick) {
  switch (dtype) {
    case DType::i64: return pick(integer_loops<std::int64_t>);
    case DType::i32: return pick(integer_loops<std::int32_t>);
    case DType::u8: return pick(integer_loops<std::uint8_t>);
    case DType::boolean: return pick(integer_loops<bool>);
    default: break;
  }
  const RowFn found = pick(elementwise_loops().of(dtype));
  return found ? found : pick(baseline::elementwise_loops.of(dtype));
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
  const RowFn f =
      loop_of(y.dtype, [&](const ElementwiseLoops& of) { return of.unary[static_cast<int>(op)]; });
  if (!f) throw_unsupported(name_of(op), stream.device, y.dtype);
  run_loop<2>({&y, &x}, grain_of(op), f, &params);
}

/// Whether both are dense images, and in different memory formats.
bool differ_in_format(const View& a, const View& b) {
  if (a.shape.size() != 4) return false;
  const bool a_first = is_format(a, MemoryFormat::nchw), a_last = is_format(a, MemoryFormat::nhwc);
  const bool b_first = is_format(b, MemoryFormat::nchw), b_last = is_format(b, MemoryFormat::nhwc);
  return a_first != a_last && a_first == b_last && a_last == b_first;
}

void unary_backward(const Stream& stream, UnaryOp op, UnaryParams params, const View& grad_y,
                    const View& saved, const View& grad_x) {
  const RowFn f = loop_of(grad_x.dtype, [&](const ElementwiseLoops& of) {
    return of.unary_backward[static_cast<int>(op)];
  });
  if (!f) throw_unsupported(name_of(op), stream.device, grad_x.dtype);
  // A gradient in another memory format is converted first: a copy reads it in long runs, while the
  // loop would gather its elements one by one, which takes three times as long from memory.
  const bool converts = differ_in_format(grad_y, grad_x) && saved.strides == grad_x.strides;
  if (converts) copy(stream, grad_y, grad_x);
  const View& grad = converts ? grad_x : grad_y;
  // An operand that was not saved is not read; another one of the right shape replaces it.
  run_loop<3>({&grad_x, &grad, saved ? &saved : &grad}, grain_of(op), f, &params);
}

void binary(const Stream& stream, BinaryOp op, const View& a, const View& b, const View& y) {
  const RowFn f =
      loop_of(y.dtype, [&](const ElementwiseLoops& of) { return of.binary[static_cast<int>(op)]; });
  if (!f) throw_unsupported(name_of(op), stream.device, y.dtype);
  const auto single = [&](bool of_b) {  // null for integers
    return loop_of(y.dtype, [&](const ElementwiseLoops& of) {
      return of.binary_single[static_cast<int>(op)][of_b];
    });
  };
  run_loop<3>({&y, &a, &b}, grain_of(op), {f, {nullptr, single(false), single(true)}}, nullptr);
}

void binary_backward(const Stream& stream, BinaryOp op, bool of_b, const View& grad_y,
                     const View& a, const View& b, const View& grad) {
  const RowFn f = loop_of(grad.dtype, [&](const ElementwiseLoops& of) {
    return of.binary_backward[static_cast<int>(op)][of_b];
  });
  if (!f) throw_unsupported(name_of(op), stream.device, grad.dtype);
  run_loop<4>({&grad, &grad_y, a ? &a : &grad_y, b ? &b : &grad_y}, grain_of(op), f, nullptr);
}

void add_scaled(const Stream& stream, double alpha, const View& x, const View& y) {
  const RowFn f = loop_of(y.dtype, [&](const ElementwiseLoops& of) { return of.add_scaled; });
  if (!f) throw_unsupported("add_scaled", stream.device, y.dtype);
  run_loop<3>({&y, &y, &x}, kCheapGrain, f, &alpha);
}

}  // namespace

ElementwiseKernels elementwise_kernels() {
  return {.unary = unary,
          .unary_backward = unary_backward,
          .binary = binary,
          .binary_backward = binary_backward,
          .compare = compare,
          .where = where,
          .copy = copy,
          .copy_all = copy_all,
          .fill = fill,
          .add_scaled = add_scaled,
          .arange = arange};
}

}  // namespace weft::cpu
