// Reductions over any set of dimensions.
#include "weft/kernels/reduce.h"

#include "weft/kernels/backend.h"
#include "weft/kernels/reference/elements.h"

namespace weft::reference {
namespace {

/// Calls f(coordinates) for each element of x that belongs to the element `at` of the result y.
template <class F>
void for_each_of(const Dims& at, const Shape& x, const Shape& y, F&& f) {
  Shape reduced = x;
  for (int d = 0; d < x.size(); ++d) {
    if (x[d] == y[d]) reduced[d] = 1;
  }
  for_each_position(reduced, [&](const Dims& within) {
    Dims position = at;
    for (int d = 0; d < x.size(); ++d) position[d] += within[d];
    f(position);
  });
}

template <class V>
V folded(ReduceOp op, V so_far, V value, bool first) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::mean: return so_far + value;
    case ReduceOp::prod: return so_far * value;
    case ReduceOp::max: return first || value > so_far || value != value ? value : so_far;
    case ReduceOp::min: return first || value < so_far || value != value ? value : so_far;
    case ReduceOp::all: return so_far != 0 && value != 0;
    case ReduceOp::any: return so_far != 0 || value != 0;
  }
  return so_far;
}

/// T: the dtype of x; Y: that of y.
template <class T, class Y>
void reduce_as(ReduceOp op, const View& x_view, const View& y_view) {
  const Elements<T> x(x_view);
  const Elements<Y> y(y_view);
  for_each_position(y_view.shape, [&](const Dims& at) {
    value_t<T> result = op == ReduceOp::prod || op == ReduceOp::all;
    std::int64_t n = 0;
    for_each_of(at, x_view.shape, y_view.shape,
                [&](const Dims& of) { result = folded(op, result, x(of), n++ == 0); });
    if constexpr (!std::is_integral_v<T>) {
      if (op == ReduceOp::mean) result /= static_cast<double>(n);
    }
    y.set(static_cast<value_t<Y>>(result), at);
  });
}

std::size_t workspace_bytes(ReduceOp, const View&, const View&) { return 0; }

void reduce(const Stream& stream, ReduceOp op, const View& x, const View& y, void*) {
  if (op == ReduceOp::mean && !is_floating(x.dtype)) {
    throw_unsupported("mean", stream.device, x.dtype);
  }
  dispatch_all(x.dtype, [&]<class T>() {
    if (op == ReduceOp::all || op == ReduceOp::any) return reduce_as<T, bool>(op, x, y);
    if constexpr (std::is_integral_v<T>) {
      if (op == ReduceOp::sum || op == ReduceOp::prod) return reduce_as<T, std::int64_t>(op, x, y);
    }
    reduce_as<T, T>(op, x, y);
  });
}

std::size_t moments_workspace_bytes(const View&, const View&) { return 0; }
std::size_t arg_workspace_bytes(const View&, const View&) { return 0; }

void moments(const Stream& stream, const View& x_view, const View& mean_view,
             const View& squares_view, void*) {
  const Elements<double> means(mean_view), squares(squares_view);
  for_floating("moments", stream, x_view.dtype, [&]<class T>() {
    const Elements<T> x(x_view);
    for_each_position(squares_view.shape, [&](const Dims& at) {
      const auto values = [&](auto&& f) {
        for_each_of(at, x_view.shape, squares_view.shape, [&](const Dims& of) { f(x(of)); });
      };
      if (means) {
        const Moments of_x(values);
        means.set(of_x.mean, at);
        squares.set(of_x.squares, at);
      } else {
        double sum = 0;
        values([&](double value) { sum += value * value; });
        squares.set(sum, at);
      }
    });
  });
}

void scaled_deviation(const Stream& stream, const View& x_view, const View& center_view,
                      const View& factor_view, const View& y_view) {
  const Elements<double> center(center_view), factor(factor_view);
  for_floating("scaled_deviation", stream, x_view.dtype, [&]<class T>() {
    const Elements<T> x(x_view), y(y_view);
    for_each_position(y_view.shape, [&](const Dims& at) {
      y.set((x(at) - (center ? center(at) : 0)) * factor(at), at);
    });
  });
}

void arg_reduce(const Stream&, ArgReduceOp op, const View& x_view, int, const View& y_view, void*) {
  const Elements<std::int64_t> y(y_view);
  dispatch_all(x_view.dtype, [&]<class T>() {
    const Elements<T> x(x_view);
    for_each_position(y_view.shape, [&](const Dims& at) {
      std::int64_t position = 0, i = 0;
      value_t<T> best = 0;
      for_each_of(at, x_view.shape, y_view.shape, [&](const Dims& of) {
        const value_t<T> value = x(of);
        const bool better = op == ArgReduceOp::argmax ? value > best : value < best;
        if (i == 0 || (best == best && (better || value != value))) {
          best = value;
          position = i;
        }
        ++i;
      });
      if (i > 0) y.set(position, at);
    });
  });
}

}  // namespace

ReduceKernels reduce_kernels() {
  return {.workspace_bytes = workspace_bytes,
          .reduce = reduce,
          .moments_workspace_bytes = moments_workspace_bytes,
          .moments = moments,
          .scaled_deviation = scaled_deviation,
          .arg_reduce = arg_reduce,
          .arg_workspace_bytes = arg_workspace_bytes};
}

}  // namespace weft::reference
