// 2-D max and average pooling. In all passes a thread computes one element of the output: the
// backward passes search for the windows over an element instead of adding from the windows.
#include <cmath>

#include "weft/kernels/cuda/access.cuh"
#include "weft/kernels/cuda/families.h"
#include "weft/kernels/cuda/index_math.h"
#include "weft/kernels/cuda/launch.h"
#include "weft/kernels/pool_axis.h"

namespace weft::cuda {
namespace {

struct PoolArgs {
  // Maps a position in the written view's memory order to n, c, h, w.
  Offsets<4> coordinates;
  std::int64_t n;  // elements of the written view
  Pool2dParams p;
  PoolAxis rows, cols;  // lengths of the larger and the pooled side; windows of an adaptive pooling
  std::int64_t image[4], pooled[4], index[4];  // strides of x or grad_x, y or grad_y, index
};

struct Position {
  std::int64_t n, c, h, w;
};

__device__ Position position_of(const Offsets<4>& coordinates, std::int64_t i) {
  const OffsetArray<4> o = coordinates.at_any(i);
  return {o.at[0], o.at[1], o.at[2], o.at[3]};
}

/// The coordinates of the elements of `written` in its own memory order. Uses "views" whose offsets
/// are the coordinates; `written` comes first, so its strides decide the order.
Offsets<4> coordinates_of(const View& written) {
  static const Strides unit[4] = {{1, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 1, 0}, {0, 0, 0, 1}};
  const IndexSpace<5> sorted =
      index_space<5>(written.shape, {&written.strides, &unit[0], &unit[1], &unit[2], &unit[3]});
  IndexSpace<4> space;
  for (int d = 0; d < sorted.ndim; ++d) {
    const auto& row = sorted.stride[d];
    space.add_outer(sorted.size[d], {row[1], row[2], row[3], row[4]});
  }
  return Offsets<4>(space);
}

PoolArgs pool_args(const Pool2dParams& params, const View& image, const View& pooled,
                   const View& index, const View& written) {
  PoolArgs args{coordinates_of(written),
                written.numel(),
                params,
                PoolAxis::of_adaptive(image.shape[2], pooled.shape[2]),
                PoolAxis::of_adaptive(image.shape[3], pooled.shape[3]),
                {},
                {},
                {}};
  for (int d = 0; d < 4; ++d) {
    args.image[d] = image.strides[d];
    args.pooled[d] = pooled.strides[d];
    args.index[d] = index.strides[d];
  }
  return args;
}

__device__ std::int64_t offset(const std::int64_t* strides, std::int64_t n, std::int64_t c,
                               std::int64_t h, std::int64_t w) {
  return n * strides[0] + c * strides[1] + h * strides[2] + w * strides[3];
}

/// The positions of a window along one axis that are inside the image: first, first + step, ...,
/// below end.
struct Taps {
  std::int64_t first, step, end;
};

__device__ Taps taps_of(const Pool2dParams& p, int axis, const PoolAxis& adaptive,
                        std::int64_t out) {
  if (p.adaptive) return {adaptive.begin(out), 1, adaptive.end(out)};
  const std::int64_t step = p.dilation[axis], from = out * p.stride[axis] - p.padding[axis];
  const std::int64_t end = from + (p.kernel[axis] - 1) * step + 1;
  return {from >= 0 ? from : from + ceil_div(-from, step) * step, step,
          end < adaptive.in ? end : adaptive.in};
}

/// The windows, first to last, that may have a tap at position `at`, which counts from the start of
/// the first window: at = window * stride + tap * dilation.
struct WindowRange {
  std::int64_t first, last;
};

__device__ WindowRange windows_over(const Pool2dParams& p, int axis, std::int64_t at,
                                    std::int64_t out) {
  const std::int64_t missed = at - (p.kernel[axis] - 1) * p.dilation[axis];
  const std::int64_t last = at / p.stride[axis];
  return {missed > 0 ? ceil_div(missed, p.stride[axis]) : 0, last < out ? last : out - 1};
}

template <class T>
__global__ void __launch_bounds__(kBlock)
    max_pool_kernel(const __grid_constant__ PoolArgs args, const T* x, T* y, std::int32_t* index) {
  using C = accumulate_t<T>;
  const Pool2dParams& p = args.p;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x; i < args.n;
       i += std::int64_t{gridDim.x} * kBlock) {
    const Position at = position_of(args.coordinates, i);
    // The result of a window that contains only padding.
    C best = -static_cast<C>(INFINITY);
    std::int64_t winner = -1;
    bool found = false;
    const Taps rows = taps_of(p, 0, args.rows, at.h), cols = taps_of(p, 1, args.cols, at.w);
    for (std::int64_t h = rows.first; h < rows.end; h += rows.step) {
      for (std::int64_t w = cols.first; w < cols.end; w += cols.step) {
        const C value = static_cast<C>(x[offset(args.image, at.n, at.c, h, w)]);
        // Of several NaNs the last one is kept, of several largest values the first.
        if (!found || value > best || value != value) {
          found = true;
          best = value;
          winner = h * args.cols.in + w;
        }
      }
    }
    y[offset(args.pooled, at.n, at.c, at.h, at.w)] = static_cast<T>(best);
    index[offset(args.index, at.n, at.c, at.h, at.w)] = static_cast<std::int32_t>(winner);
  }
}

template <class T>
__global__ void __launch_bounds__(kBlock)
    max_pool_backward_kernel(const __grid_constant__ PoolArgs args, const T* grad_y,
                             const std::int32_t* index, T* grad_x) {
  using C = accumulate_t<T>;
  const Pool2dParams& p = args.p;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x; i < args.n;
       i += std::int64_t{gridDim.x} * kBlock) {
    const Position at = position_of(args.coordinates, i);
    const std::int64_t here = at.h * args.cols.in + at.w;
    C sum = 0;
    const auto add = [&](std::int64_t ho, std::int64_t wo) {
      if (index[offset(args.index, at.n, at.c, ho, wo)] == here) {
        sum += static_cast<C>(grad_y[offset(args.pooled, at.n, at.c, ho, wo)]);
      }
    };
    if (p.adaptive) {
      for (std::int64_t ho = args.rows.first(at.h); ho < args.rows.last(at.h); ++ho) {
        for (std::int64_t wo = args.cols.first(at.w); wo < args.cols.last(at.w); ++wo) add(ho, wo);
      }
    } else {
      const std::int64_t row = at.h + p.padding[0], col = at.w + p.padding[1];
      const WindowRange rows = windows_over(p, 0, row, args.rows.out);
      const WindowRange cols = windows_over(p, 1, col, args.cols.out);
      for (std::int64_t ho = rows.first; ho <= rows.last; ++ho) {
        if ((row - ho * p.stride[0]) % p.dilation[0] != 0) continue;
        for (std::int64_t wo = cols.first; wo <= cols.last; ++wo) {
          if ((col - wo * p.stride[1]) % p.dilation[1] == 0) add(ho, wo);
        }
      }
    }
    grad_x[offset(args.image, at.n, at.c, at.h, at.w)] = static_cast<T>(sum);
  }
}

void max_pool2d(const Stream& stream, const Pool2dParams& params, const View& x, const View& y,
                const View& index) {
  if (y.numel() == 0) return;
  const PoolArgs args = pool_args(params, x, y, index, y);
  for_floating("max_pool2d", stream, x.dtype, [&]<class T>() {
    launch("max_pool2d", stream, max_pool_kernel<T>, grid_blocks(args.n), kBlock, args, x.as<T>(),
           y.as<T>(), index.as<std::int32_t>());
  });
}

void max_pool2d_backward(const Stream& stream, const Pool2dParams& params, const View& grad_y,
                         const View& index, const View& grad_x) {
  if (grad_x.numel() == 0) return;
  const PoolArgs args = pool_args(params, grad_x, grad_y, index, grad_x);
  for_floating("max_pool2d_backward", stream, grad_x.dtype, [&]<class T>() {
    launch("max_pool2d_backward", stream, max_pool_backward_kernel<T>, grid_blocks(args.n), kBlock,
           args, grad_y.as<T>(), index.as<std::int32_t>(), grad_x.as<T>());
  });
}

struct AvgArgs {
  Offsets<4> coordinates;  // as in PoolArgs
  std::int64_t n;
  PoolAxis rows, cols;
  std::int64_t divisor;
  bool with_padding;
  std::int64_t image[4], pooled[4];
};

AvgArgs avg_args(const AvgPool2dParams& p, const View& image, const View& pooled,
                 const View& written) {
  AvgArgs args{coordinates_of(written),
               written.numel(),
               PoolAxis(p, 0, image.shape[2], pooled.shape[2]),
               PoolAxis(p, 1, image.shape[3], pooled.shape[3]),
               p.divisor,
               p.count_include_pad,
               {},
               {}};
  for (int d = 0; d < 4; ++d) {
    args.image[d] = image.strides[d];
    args.pooled[d] = pooled.strides[d];
  }
  return args;
}

__device__ double divisor_of(const AvgArgs& args, std::int64_t ho, std::int64_t wo) {
  if (args.divisor != 0) return static_cast<double>(args.divisor);
  return static_cast<double>(args.rows.size(ho, args.with_padding) *
                             args.cols.size(wo, args.with_padding));
}

template <class T>
__global__ void __launch_bounds__(kBlock)
    avg_pool_kernel(const __grid_constant__ AvgArgs args, const T* x, T* y) {
  using C = accumulate_t<T>;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x; i < args.n;
       i += std::int64_t{gridDim.x} * kBlock) {
    const Position at = position_of(args.coordinates, i);
    double sum = 0;
    for (std::int64_t h = args.rows.begin(at.h); h < args.rows.end(at.h); ++h) {
      for (std::int64_t w = args.cols.begin(at.w); w < args.cols.end(at.w); ++w) {
        sum += static_cast<C>(x[offset(args.image, at.n, at.c, h, w)]);
      }
    }
    y[offset(args.pooled, at.n, at.c, at.h, at.w)] =
        static_cast<T>(static_cast<C>(sum / divisor_of(args, at.h, at.w)));
  }
}

template <class T>
__global__ void __launch_bounds__(kBlock)
    avg_pool_backward_kernel(const __grid_constant__ AvgArgs args, const T* grad_y, T* grad_x) {
  using C = accumulate_t<T>;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x; i < args.n;
       i += std::int64_t{gridDim.x} * kBlock) {
    const Position at = position_of(args.coordinates, i);
    double sum = 0;
    for (std::int64_t ho = args.rows.first(at.h); ho < args.rows.last(at.h); ++ho) {
      for (std::int64_t wo = args.cols.first(at.w); wo < args.cols.last(at.w); ++wo) {
        sum += static_cast<C>(grad_y[offset(args.pooled, at.n, at.c, ho, wo)]) /
               divisor_of(args, ho, wo);
      }
    }
    grad_x[offset(args.image, at.n, at.c, at.h, at.w)] = static_cast<T>(static_cast<C>(sum));
  }
}

void avg_pool2d(const Stream& stream, const AvgPool2dParams& params, const View& x, const View& y) {
  if (y.numel() == 0) return;
  const AvgArgs args = avg_args(params, x, y, y);
  for_floating("avg_pool2d", stream, x.dtype, [&]<class T>() {
    launch("avg_pool2d", stream, avg_pool_kernel<T>, grid_blocks(args.n), kBlock, args, x.as<T>(),
           y.as<T>());
  });
}

void avg_pool2d_backward(const Stream& stream, const AvgPool2dParams& params, const View& grad_y,
                         const View& grad_x) {
  if (grad_x.numel() == 0) return;
  const AvgArgs args = avg_args(params, grad_x, grad_y, grad_x);
  for_floating("avg_pool2d_backward", stream, grad_x.dtype, [&]<class T>() {
    launch("avg_pool2d_backward", stream, avg_pool_backward_kernel<T>, grid_blocks(args.n), kBlock,
           args, grad_y.as<T>(), grad_x.as<T>());
  });
}

}  // namespace

PoolingKernels pooling_kernels() {
  return {.max_pool2d = max_pool2d,
          .max_pool2d_backward = max_pool2d_backward,
          .avg_pool2d = avg_pool2d,
          .avg_pool2d_backward = avg_pool2d_backward};
}

}  // namespace weft::cuda
