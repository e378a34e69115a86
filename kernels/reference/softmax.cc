// Softmax and log-softmax over rows.
#include "weft/kernels/softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "weft/kernels/backend.h"
#include "weft/kernels/reference/elements.h"

namespace weft::reference {
namespace {

void forward(const Stream& stream, SoftmaxOp op, const View& x_view, const View& y_view) {
  const std::int64_t rows = x_view.shape[0], n = x_view.shape[1];
  for_floating("softmax", stream, x_view.dtype, [&]<class T>() {
    const Elements<T> x(x_view), y(y_view);
    for (std::int64_t r = 0; r < rows; ++r) {
      double most = -std::numeric_limits<double>::infinity();
      for (std::int64_t i = 0; i < n; ++i) most = std::max(most, x(r, i));
      double sum = 0;
      for (std::int64_t i = 0; i < n; ++i) sum += std::exp(x(r, i) - most);
      for (std::int64_t i = 0; i < n; ++i) {
        const double above = x(r, i) - most;
        y.set(op == SoftmaxOp::softmax ? std::exp(above) / sum : above - std::log(sum), r, i);
      }
    }
  });
}

void backward(const Stream& stream, SoftmaxOp op, const View& grad_y_view, const View& y_view,
              const View& grad_x_view) {
  const std::int64_t rows = y_view.shape[0], n = y_view.shape[1];
  for_floating("softmax", stream, y_view.dtype, [&]<class T>() {
    const Elements<T> grad_y(grad_y_view), y(y_view), grad_x(grad_x_view);
    for (std::int64_t r = 0; r < rows; ++r) {
      double sum = 0;
      for (std::int64_t i = 0; i < n; ++i) {
        sum += op == SoftmaxOp::softmax ? grad_y(r, i) * y(r, i) : grad_y(r, i);
      }
      for (std::int64_t i = 0; i < n; ++i) {
        grad_x.set(op == SoftmaxOp::softmax ? y(r, i) * (grad_y(r, i) - sum)
                                            : grad_y(r, i) - std::exp(y(r, i)) * sum,
                   r, i);
      }
    }
  });
}

}  // namespace

SoftmaxKernels softmax_kernels() { return {.forward = forward, .backward = backward}; }

}  // namespace weft::reference
