// Softmax and its logarithm, each in a kernel forward and one backward. Forward passes over x three
// times, for the maximum, the sum of exp, and y, which it writes; backward twice over grad_y and y,
// for their sum and for grad_x. After the first time a row comes from the cache. Sums have an order
// fixed by the shapes.
#include "weft/kernels/cuda/families.h"
#include "weft/kernels/cuda/launch.h"
#include "weft/kernels/cuda/rows.cuh"

namespace weft::cuda {
namespace {

template <class T, bool log>
__global__ void __launch_bounds__(kBlock) softmax_kernel(const Rows rows, const T* in, T* out) {
  using C = accumulate_t<T>;
  rows.for_each([&](std::int64_t row, bool exists, Place place) {
    const T* const x = in + row * rows.n;
    const Exponentials<C> of = exponentials(rows, x, exists, place);
    T* const y = out + row * rows.n;
    const C shift = of.shift();
    const C factor = 1 / of.sum;
    rows.for_lane(place, exists, [&](std::int64_t c) {
      const C v = static_cast<C>(x[c]);
      y[c] = static_cast<T>(log ? v - shift : std::exp(v - of.most) * factor);
    });
  });
}

template <class T, bool log>
__global__ void __launch_bounds__(kBlock)
    softmax_backward_kernel(const Rows rows, const T* grad_out, const T* out, T* grad_in) {
  using C = accumulate_t<T>;
  rows.for_each([&](std::int64_t row, bool exists, Place place) {
    const std::int64_t at = row * rows.n;
    const C total = rows.sum<C>(place, exists, [&]<class A>(std::int64_t c) {
      const A g = static_cast<A>(grad_out[at + c]);
      return log ? g : g * static_cast<A>(out[at + c]);
    });
    rows.for_lane(place, exists, [&](std::int64_t c) {
      const C g = static_cast<C>(grad_out[at + c]), y = static_cast<C>(out[at + c]);
      grad_in[at + c] = static_cast<T>(log ? g - std::exp(y) * total : y * (g - total));
    });
  });
}

void forward(const Stream& stream, SoftmaxOp op, const View& x, const View& y) {
  const Rows rows(x.shape[0], x.shape[1]);
  for_floating("softmax", stream, x.dtype, [&]<class T>() {
    const auto kernel =
        op == SoftmaxOp::softmax ? softmax_kernel<T, false> : softmax_kernel<T, true>;
    launch("softmax", stream, kernel, rows.blocks(), kBlock, rows, x.as<T>(), y.as<T>());
  });
}

void backward(const Stream& stream, SoftmaxOp op, const View& grad_y, const View& y,
              const View& grad_x) {
  const Rows rows(y.shape[0], y.shape[1]);
  for_floating("softmax_backward", stream, y.dtype, [&]<class T>() {
    const auto kernel = op == SoftmaxOp::softmax ? softmax_backward_kernel<T, false>
                                                 : softmax_backward_kernel<T, true>;
    launch("softmax_backward", stream, kernel, rows.blocks(), kBlock, rows, grad_y.as<T>(),
           y.as<T>(), grad_x.as<T>());
  });
}

}  // namespace

SoftmaxKernels softmax_kernels() { return {.forward = forward, .backward = backward}; }

}  // namespace weft::cuda
