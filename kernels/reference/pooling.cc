// 2-D max and average pooling.
#include "weft/kernels/pooling.h"

#include <limits>

#include "weft/kernels/backend.h"
#include "weft/kernels/pool_axis.h"
#include "weft/kernels/reference/elements.h"

namespace weft::reference {
namespace {

/// The positions of window o along an axis, some of them in the padding: first, first + step, ...
struct Window {
  std::int64_t first, step, count;
};
Window window(const Pool2dParams& p, int axis, std::int64_t o, std::int64_t in, std::int64_t out) {
  if (p.adaptive) {
    const PoolAxis<> along = pool_axis(p, axis, in, out);
    return {along.begin(o), 1, along.end(o) - along.begin(o)};
  }
  return {o * p.stride[axis] - p.padding[axis], p.dilation[axis], p.kernel[axis]};
}

void max_pool2d(const Stream& stream, const Pool2dParams& p, const View& x_view, const View& y_view,
                const View& index_view) {
  const std::int64_t height = x_view.shape[2], width = x_view.shape[3];
  for_floating("max_pool2d", stream, x_view.dtype, [&]<class T>() {
    const Elements<T> x(x_view), y(y_view);
    const Elements<std::int32_t> index(index_view);
    for_each_position(y_view.shape, [&](const Dims& at) {
      const Window rows = window(p, 0, at[2], height, y_view.shape[2]);
      const Window cols = window(p, 1, at[3], width, y_view.shape[3]);
      double most = -std::numeric_limits<double>::infinity();
      std::int64_t position = -1;
      for (std::int64_t r = 0; r < rows.count; ++r) {
        const std::int64_t h = rows.first + r * rows.step;
        if (h < 0 || h >= height) continue;
        for (std::int64_t s = 0; s < cols.count; ++s) {
          const std::int64_t w = cols.first + s * cols.step;
          if (w < 0 || w >= width) continue;
          const double value = x(at[0], at[1], h, w);
          if (position < 0 || value > most || value != value) {
            most = value;
            position = h * width + w;
          }
        }
      }
      y.set(most, at);
      index.set(position, at);
    });
  });
}

void max_pool2d_backward(const Stream& stream, const Pool2dParams&, const View& grad_y_view,
                         const View& index_view, const View& grad_x_view) {
  const std::int64_t height = grad_x_view.shape[2], width = grad_x_view.shape[3];
  for_floating("max_pool2d", stream, grad_x_view.dtype, [&]<class T>() {
    const Elements<T> grad_y(grad_y_view), grad_x(grad_x_view);
    const Elements<std::int32_t> index(index_view);
    Sums sum(grad_x_view.shape);
    for_each_position(grad_y_view.shape, [&](const Dims& at) {
      const std::int64_t position = index(at);
      if (position < 0 || position >= height * width) return;
      sum.add(grad_y(at), at[0], at[1], position / width, position % width);
    });
    for_each_position(grad_x_view.shape, [&](const Dims& at) { grad_x.set(sum(at), at); });
  });
}

/// Calls f(window, size, for_each_pixel) for each window of y; the sum of the window is divided by
/// size, and for_each_pixel(g) calls g(n, c, h, w) for each of its pixels.
template <class F>
void for_each_window(const AvgPool2dParams& p, const Shape& x, const Shape& y, F&& f) {
  const PoolAxis<> rows = pool_axis(p, 0, x[2], y[2]), cols = pool_axis(p, 1, x[3], y[3]);
  for_each_position(y, [&](const Dims& at) {
    const std::int64_t oh = at[2], ow = at[3];
    const std::int64_t positions =
        rows.size(oh, p.count_include_pad) * cols.size(ow, p.count_include_pad);
    f(at, static_cast<double>(p.divisor != 0 ? p.divisor : positions), [&](auto&& g) {
      for (std::int64_t h = rows.begin(oh); h < rows.end(oh); ++h) {
        for (std::int64_t w = cols.begin(ow); w < cols.end(ow); ++w) g(at[0], at[1], h, w);
      }
    });
  });
}

void avg_pool2d(const Stream& stream, const AvgPool2dParams& p, const View& x_view,
                const View& y_view) {
  for_floating("avg_pool2d", stream, x_view.dtype, [&]<class T>() {
    const Elements<T> x(x_view), y(y_view);
    for_each_window(p, x_view.shape, y_view.shape,
                    [&](const Dims& window, double size, auto&& for_each_pixel) {
                      double sum = 0;
                      for_each_pixel([&](auto... pixel) { sum += x(pixel...); });
                      y.set(sum / size, window);
                    });
  });
}

void avg_pool2d_backward(const Stream& stream, const AvgPool2dParams& p, const View& grad_y_view,
                         const View& grad_x_view) {
  for_floating("avg_pool2d", stream, grad_x_view.dtype, [&]<class T>() {
    const Elements<T> grad_y(grad_y_view), grad_x(grad_x_view);
    Sums sum(grad_x_view.shape);
    for_each_window(p, grad_x_view.shape, grad_y_view.shape,
                    [&](const Dims& window, double size, auto&& for_each_pixel) {
                      const double share = grad_y(window) / size;
                      for_each_pixel([&](auto... pixel) { sum.add(share, pixel...); });
                    });
    for_each_position(grad_x_view.shape, [&](const Dims& at) { grad_x.set(sum(at), at); });
  });
}

}  // namespace

PoolingKernels pooling_kernels() {
  return {.max_pool2d = max_pool2d,
          .max_pool2d_backward = max_pool2d_backward,
          .avg_pool2d = avg_pool2d,
          .avg_pool2d_backward = avg_pool2d_backward};
}

}  // namespace weft::reference
