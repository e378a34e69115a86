// Element-wise operations: the functors, computed in f64 or i64.
#include "weft/kernels/elementwise.h"

#include "weft/kernels/backend.h"
#include "weft/kernels/functors.h"
#include "weft/kernels/reference/elements.h"

namespace weft::reference {
namespace {

/// Calls f(functor, name, whether integer types have it) for the operation.
template <class F>
void for_unary(UnaryOp op, UnaryParams params, F&& f) {
  switch (op) {
#define WEFT_CASE(value, name, Functor, integers, ...) \
  case UnaryOp::value: return f(functor::Functor{params}, #value, std::bool_constant<integers>());
    WEFT_UNARY_OPS(WEFT_CASE)
#undef WEFT_CASE
#define WEFT_CASE(value, Functor, integers) \
  case UnaryOp::value: return f(functor::Functor{params}, #value, std::bool_constant<integers>());
    WEFT_SCALAR_OPS(WEFT_CASE)
#undef WEFT_CASE
  }
}
template <class F>
void for_binary(BinaryOp op, F&& f) {
  switch (op) {
#define WEFT_CASE(value, name, Functor, integers, ...) \
  case BinaryOp::value: return f(functor::Functor{}, #value, std::bool_constant<integers>());
    WEFT_BINARY_OPS(WEFT_CASE)
#undef WEFT_CASE
  }
}

// One element, in f64 or i64. The loops below look its functor up each time: a loop for each
// functor and dtype would take much longer to compile.
template <class V>
V forward(UnaryOp op, UnaryParams params, V x) {
  V y{};
  for_unary(op, params, [&](auto functor, const char*, auto integers) {
    if constexpr (integers || std::floating_point<V>) y = functor.fwd(x);
  });
  return y;
}
double backward(UnaryOp op, UnaryParams params, double grad_y, double saved) {
  double grad = 0;
  for_unary(op, params,
            [&](auto functor, const char*, auto) { grad = functor.bwd(grad_y, saved); });
  return grad;
}
template <class V>
V forward(BinaryOp op, V a, V b) {
  V y{};
  for_binary(op, [&](auto functor, const char*, auto integers) {
    if constexpr (integers || std::floating_point<V>) y = functor.fwd(a, b);
  });
  return y;
}
double backward(BinaryOp op, bool of_b, double grad_y, double a, double b) {
  double grad = 0;
  for_binary(op, [&](auto functor, const char*, auto) {
    grad = of_b ? functor.bwd_b(grad_y, a, b) : functor.bwd_a(grad_y, a, b);
  });
  return grad;
}

void unary(const Stream& stream, UnaryOp op, UnaryParams params, const View& x_view,
           const View& y_view) {
  for_unary(op, params, [&](auto, const char* name, auto integers) {
    if (!integers) require_floating(name, stream, y_view.dtype);
  });
  dispatch_all(y_view.dtype, [&]<class T>() {
    const Elements<T> x(x_view), y(y_view);
    for_each_position(y_view.shape, [&](const Dims& at) { y.set(forward(op, params, x(at)), at); });
  });
}

void unary_backward(const Stream& stream, UnaryOp op, UnaryParams params, const View& grad_y_view,
                    const View& saved_view, const View& grad_x_view) {
  for_floating("unary_backward", stream, grad_x_view.dtype, [&]<class T>() {
    const Elements<T> grad_y(grad_y_view), saved(saved_view), grad_x(grad_x_view);
    for_each_position(grad_x_view.shape, [&](const Dims& at) {
      grad_x.set(backward(op, params, grad_y(at), saved ? saved(at) : 0), at);
    });
  });
}

void binary(const Stream& stream, BinaryOp op, const View& a_view, const View& b_view,
            const View& y_view) {
  for_binary(op, [&](auto, const char* name, auto integers) {
    if (!integers) require_floating(name, stream, y_view.dtype);
  });
  dispatch_all(y_view.dtype, [&]<class T>() {
    const Elements<T> a(a_view), b(b_view), y(y_view);
    for_each_position(y_view.shape, [&](const Dims& at) { y.set(forward(op, a(at), b(at)), at); });
  });
}

void binary_backward(const Stream& stream, BinaryOp op, bool of_b, const View& grad_y_view,
                     const View& a_view, const View& b_view, const View& grad_view) {
  for_floating("binary_backward", stream, grad_view.dtype, [&]<class T>() {
    const Elements<T> grad_y(grad_y_view), a(a_view), b(b_view), grad(grad_view);
    for_each_position(grad_view.shape, [&](const Dims& at) {
      grad.set(backward(op, of_b, grad_y(at), a ? a(at) : 0, b ? b(at) : 0), at);
    });
  });
}

template <class V>
bool holds(CompareOp op, V a, V b) {
  switch (op) {
#define WEFT_CASE(value, name, expression) \
  case CompareOp::value: return expression;
    WEFT_COMPARE_OPS(WEFT_CASE)
#undef WEFT_CASE
  }
  return false;
}

void compare(const Stream&, CompareOp op, const View& a_view, const View& b_view,
             const View& y_view) {
  const Elements<bool> y(y_view);
  dispatch_all(a_view.dtype, [&]<class T>() {
    const Elements<T> a(a_view), b(b_view);
    for_each_position(y_view.shape, [&](const Dims& at) { y.set(holds(op, a(at), b(at)), at); });
  });
}

void where(const Stream&, const View& condition_view, const View& a_view, const View& b_view,
           const View& y_view) {
  const Elements<bool> condition(condition_view);
  dispatch_all(y_view.dtype, [&]<class T>() {
    const Elements<T> a(a_view), b(b_view), y(y_view);
    for_each_position(y_view.shape,
                      [&](const Dims& at) { y.set(condition(at) ? a(at) : b(at), at); });
  });
}

void copy(const Stream&, const View& x_view, const View& y_view) {
  dispatch_all(x_view.dtype, [&]<class From>() {
    dispatch_all(y_view.dtype, [&]<class To>() {
      const Elements<From> x(x_view);
      const Elements<To> y(y_view);
      for_each_position(y_view.shape, [&](const Dims& at) { y[at] = element_cast<To>(x[at]); });
    });
  });
}

void copy_all(const Stream& stream, std::span<const CopyPair> pairs) {
  for (const CopyPair& pair : pairs) copy(stream, pair.x, pair.y);
}

void fill(const Stream&, double value, const View& y_view) {
  dispatch_all(y_view.dtype, [&]<class T>() {
    const Elements<T> y(y_view);
    for_each_position(y_view.shape, [&](const Dims& at) { y[at] = element_cast<T>(value); });
  });
}

void add_scaled(const Stream& stream, double alpha, const View& x_view, const View& y_view) {
  for_floating("add_scaled", stream, y_view.dtype, [&]<class T>() {
    const Elements<T> x(x_view), y(y_view);
    for_each_position(y_view.shape, [&](const Dims& at) { y.add(alpha * x(at), at); });
  });
}

void arange(const Stream&, double start, double step, const View& y_view) {
  dispatch_all(y_view.dtype, [&]<class T>() {
    const Elements<T> y(y_view);
    for_each_position(y_view.shape, [&](const Dims& at) {
      y[at] = element_cast<T>(start + static_cast<double>(at[0]) * step);
    });
  });
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

}  // namespace weft::reference
