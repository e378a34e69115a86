// Softmax and its logarithm. Sums are in double, in an order fixed by the shapes.
#include <cmath>

#include "weft/kernels/cuda/block_fold.cuh"
#include "weft/kernels/cuda/families.h"
#include "weft/kernels/cuda/launch.h"
#include "weft/kernels/functors.h"

namespace weft::cuda {
namespace {

struct Largest {
  template <class A>
  __device__ static A fold(A a, A b) {
    return functor::Maximum{}.fwd(a, b);  // a NaN wins
  }
};

struct RowArgs {
  std::int64_t rows, n;
  int lanes, groups;
};

RowArgs row_args(const View& x) {
  const int lanes = lanes_of_row(x.shape[1]);
  return {x.shape[0], x.shape[1], lanes, kBlock / lanes};
}

template <class T, bool log>
__global__ void __launch_bounds__(kBlock) softmax_kernel(RowArgs args, const T* in, T* out) {
  using C = accumulate_t<T>;
  __shared__ C largest[kBlock];
  __shared__ double sums[kBlock];
  const Place place(args.lanes, args.groups, true);
  // All threads of a block need the same number of rounds for fold_lanes.
  for (std::int64_t first = std::int64_t{blockIdx.x} * args.groups; first < args.rows;
       first += std::int64_t{gridDim.x} * args.groups) {
    const std::int64_t row = first + place.group;
    const bool exists = row < args.rows;
    const T* const x = in + row * args.n;
    C most = -static_cast<C>(INFINITY);
    if (exists) {
      for (std::int64_t c = place.lane; c < args.n; c += args.lanes) {
        most = Largest::fold(most, static_cast<C>(x[c]));
      }
    }
    most = fold_lanes<Largest>(most, largest, place, args.lanes, args.groups);
    double sum = 0;
    if (exists) {
      for (std::int64_t c = place.lane; c < args.n; c += args.lanes) {
        sum += std::exp(static_cast<C>(x[c]) - most);
      }
    }
    sum = fold_lanes<Sum>(sum, sums, place, args.lanes, args.groups);
    if (exists) {
      T* const y = out + row * args.n;
      const C shift = most + static_cast<C>(std::log(sum));
      const C factor = static_cast<C>(1 / sum);
      for (std::int64_t c = place.lane; c < args.n; c += args.lanes) {
        const C v = static_cast<C>(x[c]);
        y[c] = static_cast<T>(log ? v - shift : std::exp(v - most) * factor);
      }
    }
  }
}

template <class T, bool log>
__global__ void __launch_bounds__(kBlock)
    softmax_backward_kernel(RowArgs args, const T* grad_out, const T* out, T* grad_in) {
  using C = accumulate_t<T>;
  __shared__ double sums[kBlock];
  const Place place(args.lanes, args.groups, true);
  for (std::int64_t first = std::int64_t{blockIdx.x} * args.groups; first < args.rows;
       first += std::int64_t{gridDim.x} * args.groups) {
    const std::int64_t row = first + place.group;
    const bool exists = row < args.rows;
    const std::int64_t at = row * args.n;
    double sum = 0;
    if (exists) {
      for (std::int64_t c = place.lane; c < args.n; c += args.lanes) {
        const C g = static_cast<C>(grad_out[at + c]);
        sum += log ? g : g * static_cast<C>(out[at + c]);
      }
    }
    const C total = static_cast<C>(fold_lanes<Sum>(sum, sums, place, args.lanes, args.groups));
    if (exists) {
      for (std::int64_t c = place.lane; c < args.n; c += args.lanes) {
        const C g = static_cast<C>(grad_out[at + c]), y = static_cast<C>(out[at + c]);
        grad_in[at + c] = static_cast<T>(log ? g - std::exp(y) * total : y * (g - total));
      }
    }
  }
}

void backward(const Stream& stream, SoftmaxOp op, const View& grad_y, const View& y,
              const View& grad_x) {
  const RowArgs args = row_args(y);
  for_floating("softmax_backward", stream, y.dtype, [&]<class T>() {
    const auto kernel = op == SoftmaxOp::softmax ? softmax_backward_kernel<T, false>
                                                 : softmax_backward_kernel<T, true>;
    launch("softmax_backward", stream, kernel, grid_blocks(args.rows, args.groups), kBlock, args,
           grad_y.as<T>(), y.as<T>(), grad_x.as<T>());
  });
}

}  // namespace

void softmax(const Stream& stream, SoftmaxOp op, const View& x, const View& y) {
  const RowArgs args = row_args(x);
  for_floating("softmax", stream, x.dtype, [&]<class T>() {
    const auto kernel =
        op == SoftmaxOp::softmax ? softmax_kernel<T, false> : softmax_kernel<T, true>;
    launch("softmax", stream, kernel, grid_blocks(args.rows, args.groups), kBlock, args, x.as<T>(),
           y.as<T>());
  });
}

SoftmaxKernels softmax_kernels() { return {.forward = softmax, .backward = backward}; }

}  // namespace weft::cuda
