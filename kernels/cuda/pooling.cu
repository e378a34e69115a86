// 2-D max and average pooling. In all passes a thread computes neighbouring channels of one pixel
// of the output: the backward passes search for the windows over a pixel instead of adding from the
// windows. The output is written once. An input is read once for each window over it or pixel under
// it, from memory once: the neighbours' reads come from the cache.
//
// Averages of f32 and bf16 add up 16 terms in f32, and such sums in f64: a term passes through 15
// additions in f32 at most. A sum that is beyond f32 on the way is summed once more in f64. In
// backward a gradient is divided before it is added: below 1e-38 it may vanish.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "weft/kernels/cuda/access.cuh"
#include "weft/kernels/cuda/families.h"
#include "weft/kernels/cuda/index_math.h"
#include "weft/kernels/cuda/launch.h"
#include "weft/kernels/pool_axis.h"

namespace weft::cuda {
namespace {

/// A FastDivider for 64 bits.
struct WideDivider {
  std::int64_t divisor;
  explicit WideDivider(std::int64_t d) : divisor(d) {}
  __device__ std::int64_t div(std::int64_t n) const { return n / divisor; }
};

/// Images as [outer, height, width, inner] in the order of memory: nchw is [N*C,H,W,1], nhwc is
/// [N,H,W,C]. A thread has a pack of neighbours of the inner dimension, which is counted in packs.
/// K, S: the side of a window and the stride if they are constants, without dilation; else 0.
template <class Int, int K, int S>
struct PoolArgs {
  using Divider = std::conditional_t<sizeof(Int) == 4, FastDivider, WideDivider>;
  /// Whether no window or pixel has more than 16 taps or windows.
  static constexpr bool few = K > 0 && K <= 4;
  PoolAxis<Int> rows, cols;
  Int packs, inner;                       // packs: of the output of the pass
  Divider by_inner, by_width, by_height;  // of the output of the pass

  /// Calls f(i, outer, h, w, b) for this thread's packs i of the output.
  template <class F>
  __device__ void for_each_pack(F&& f) const {
    for (Int i = static_cast<Int>(blockIdx.x) * kBlock + threadIdx.x; i < packs;
         i += static_cast<Int>(gridDim.x) * kBlock) {
      const Int pixel = by_inner.div(i), row = by_width.div(pixel), outer = by_height.div(row);
      f(i, outer, row - outer * static_cast<Int>(by_height.divisor),
        pixel - row * static_cast<Int>(by_width.divisor), i - pixel * inner);
    }
  }

  /// Calls f(pack of the image, position in it) for the taps of window (ho, wo), row by row.
  template <class F>
  __device__ void for_each_tap(Int outer, Int ho, Int wo, Int b, F&& f) const {
    taps(rows, ho, [&](Int h) {
      taps(cols, wo,
           [&](Int w) { f(((outer * rows.in + h) * cols.in + w) * inner + b, h * cols.in + w); });
    });
  }

  /// Calls f(pack of the pooled image, ho, wo) for the windows with a tap at (h, w).
  template <class F>
  __device__ void for_each_window(Int outer, Int h, Int w, Int b, F&& f) const {
    windows(rows, h, [&](Int ho) {
      windows(cols, w,
              [&](Int wo) { f(((outer * rows.out + ho) * cols.out + wo) * inner + b, ho, wo); });
    });
  }

 private:
  template <class F>
  __device__ static void taps(const PoolAxis<Int>& axis, Int o, F&& f) {
    const Int from = o * (K > 0 ? S : axis.stride) - axis.padding;
    if constexpr (K > 0) {
#pragma unroll
      for (int k = 0; k < K; ++k) {
        if (from + k >= 0 && from + k < axis.in) f(from + k);
      }
    } else {
      const Int begin = axis.begin(o), end = axis.end(o), past = (begin - from) % axis.dilation;
      for (Int i = past == 0 ? begin : begin + axis.dilation - past; i < end; i += axis.dilation) {
        f(i);
      }
    }
  }

  template <class F>
  __device__ static void windows(const PoolAxis<Int>& axis, Int i, F&& f) {
    const Int at = i + axis.padding;
    if constexpr (K > 0) {
#pragma unroll
      for (Int back = (K - 1) / S; back >= 0; --back) {
        const Int o = at / S - back;
        if (o >= 0 && o < axis.out && at - o * S < K) f(o);
      }
    } else {
      const Int last = axis.last(i);
      for (Int o = axis.first(i); o < last; ++o) {
        if ((at - o * axis.stride) % axis.dilation == 0) f(o);
      }
    }
  }
};

template <class T, int V>
using Values = Pack<T, accumulate_t<T>, V>;
template <int V>
using Positions = Pack<std::int32_t, std::int32_t, V>;

template <class T, int V, class Value>
__device__ Values<T, V> pack_of(const Value (&values)[V]) {
  Values<T, V> pack;
  for (int k = 0; k < V; ++k) pack.set(k, static_cast<accumulate_t<T>>(values[k]));
  return pack;
}

template <class T, int V, class Args>
__global__ void __launch_bounds__(kBlock)
    max_pool_kernel(const __grid_constant__ Args args, const Values<T, V>* x, Values<T, V>* y,
                    Positions<V>* index) {
  using C = accumulate_t<T>;
  args.for_each_pack([&](auto i, auto outer, auto h, auto w, auto b) {
    C best[V];
    Positions<V> winner;
    for (int k = 0; k < V; ++k) {
      best[k] = -static_cast<C>(INFINITY);  // the result of a window of padding alone
      winner.v[k] = -1;
    }
    args.for_each_tap(outer, h, w, b, [&](auto at, auto position) {
      const Values<T, V> tap = x[at];
      for (int k = 0; k < V; ++k) {
        const C value = tap.get(k);
        // Of several NaNs the last one is kept, of several largest values the first.
        if (winner.v[k] < 0 || value > best[k] || value != value) {
          best[k] = value;
          winner.v[k] = static_cast<std::int32_t>(position);
        }
      }
    });
    y[i] = pack_of<T>(best);
    index[i] = winner;
  });
}

template <class T, int V, class Args>
__global__ void __launch_bounds__(kBlock)
    max_pool_backward_kernel(const __grid_constant__ Args args, const Values<T, V>* grad_y,
                             const Positions<V>* index, Values<T, V>* grad_x) {
  using C = accumulate_t<T>;
  args.for_each_pack([&](auto i, auto outer, auto h, auto w, auto b) {
    const auto here = h * args.cols.in + w;
    C sum[V] = {};
    args.for_each_window(outer, h, w, b, [&](auto at, auto, auto) {
      const Positions<V> winner = index[at];
      const Values<T, V> grad = grad_y[at];
      for (int k = 0; k < V; ++k) sum[k] += winner.v[k] == here ? grad.get(k) : C(0);
    });
    grad_x[i] = pack_of<T>(sum);
  });
}

/// What the sum of a window is divided by.
template <class C>
struct Divisor {
  C fixed;  // 0: the number of positions
  bool with_padding;
  explicit Divisor(const AvgPool2dParams& p)
      : fixed(static_cast<C>(p.divisor)), with_padding(p.count_include_pad) {}
  template <class Args, class Int>
  __device__ C of(const Args& args, Int ho, Int wo) const {
    return fixed != 0 ? fixed
                      : static_cast<C>(args.rows.size(ho, with_padding)) *
                            static_cast<C>(args.cols.size(wo, with_padding));
  }
};

/// Sums of V numbers side by side: of up to 16 terms in A, of these sums in f64. `few`: there are
/// never more than 16.
template <class A, int V, bool few>
struct Sums {
  A run[V] = {};
  double runs[V] = {};  // those before
  int terms = 0;        // of `run`
  bool is_long = false;

  template <class T>
  __device__ void add(const Values<T, V>& term, A factor = 1) {
    if (!few && terms == 16) {
      for (int k = 0; k < V; ++k) {
        runs[k] += run[k];
        run[k] = 0;
      }
      terms = 0;
      is_long = true;
    }
    ++terms;
    for (int k = 0; k < V; ++k) run[k] += term.get(k) * factor;
  }
  /// Sets to[k] to sum k over `divisor`, and says whether all are finite. `again`: only those that
  /// are not finite in `to`, so that no channel's bits depend on its neighbours.
  template <class C>
  __device__ bool divide(C divisor, C (&to)[V], bool again) const {
    bool finite = true;
    for (int k = 0; k < V; ++k) {
      if (again && isfinite(to[k])) continue;
      to[k] =
          is_long ? static_cast<C>((runs[k] + run[k]) / divisor) : static_cast<C>(run[k] / divisor);
      finite &= isfinite(to[k]);
    }
    return finite;
  }
};

template <class T, int V, class Args>
__global__ void __launch_bounds__(kBlock)
    avg_pool_kernel(const __grid_constant__ Args args, const Divisor<accumulate_t<T>> divisor,
                    const Values<T, V>* x, Values<T, V>* y) {
  using C = accumulate_t<T>;
  args.for_each_pack([&](auto i, auto outer, auto h, auto w, auto b) {
    C mean[V];
    const auto average_in = [&]<class A>(bool again) {
      Sums<A, V, Args::few> sums;
      args.for_each_tap(outer, h, w, b, [&](auto at, auto) { sums.add(x[at]); });
      return sums.divide(divisor.of(args, h, w), mean, again);
    };
    if (!average_in.template operator()<C>(false)) average_in.template operator()<double>(true);
    y[i] = pack_of<T>(mean);
  });
}

template <class T, int V, class Args>
__global__ void __launch_bounds__(kBlock)
    avg_pool_backward_kernel(const __grid_constant__ Args args,
                             const Divisor<accumulate_t<T>> divisor, const Values<T, V>* grad_y,
                             Values<T, V>* grad_x) {
  using C = accumulate_t<T>;
  args.for_each_pack([&](auto i, auto outer, auto h, auto w, auto b) {
    C sum[V];
    const auto sum_in = [&]<class A>(bool again) {
      Sums<A, V, Args::few> sums;
      args.for_each_window(outer, h, w, b, [&](auto at, auto ho, auto wo) {
        sums.add(grad_y[at], A(1) / divisor.of(args, ho, wo));
      });
      return sums.divide(C(1), sum, again);
    };
    if (!sum_in.template operator()<C>(false)) sum_in.template operator()<double>(true);
    grad_x[i] = pack_of<T>(sum);
  });
}

/// Whether the kernels may compute with the windows' numbers in 32 bits.
bool fits_32_bits(const PoolAxis<>& a) {
  return (a.adaptive ? (a.in + 1) * (a.out + 1)
                     : a.in + 2 * a.padding + a.kernel + a.stride + a.dilation) <= kMaxSmall;
}

bool is_window(const PoolAxis<>& a, std::int64_t kernel, std::int64_t stride) {
  return !a.adaptive && a.dilation == 1 && a.kernel == kernel && a.stride == stride;
}

/// Calls f<V>(args, blocks), V elements T to a pack, for a pass that writes an image of the shape
/// of `written`. `index` may have no data.
template <class T, class Params, class F>
void with_args(const Params& p, const View& image, const View& pooled, const View& index,
               const View& written, F&& f) {
  if (written.numel() == 0) return;
  constexpr int kPack = sizeof(T) < 8 ? 16 / sizeof(T) : 1;
  const PoolAxis<> rows = pool_axis(p, 0, image.shape[2], pooled.shape[2]);
  const PoolAxis<> cols = pool_axis(p, 1, image.shape[3], pooled.shape[3]);
  const bool nhwc = is_format(image, MemoryFormat::nhwc) && is_format(pooled, MemoryFormat::nhwc);
  const std::int64_t inner = nhwc ? image.shape[1] : 1;
  const auto run = [&]<class Int, int K, int S, int V>() {
    using Args = PoolArgs<Int, K, S>;
    const auto divider = [](std::int64_t d) { return typename Args::Divider(static_cast<Int>(d)); };
    const Args args{rows.as<Int>(),
                    cols.as<Int>(),
                    static_cast<Int>(written.numel() / V),
                    static_cast<Int>(inner / V),
                    divider(inner / V),
                    divider(written.shape[3]),
                    divider(written.shape[2])};
    f.template operator()<V>(args, grid_blocks(args.packs));
  };
  // A thread's last step goes beyond the end.
  if (std::max(image.numel(), pooled.numel()) > kMaxSmall - kMaxBlocks * kBlock ||
      !fits_32_bits(rows) || !fits_32_bits(cols)) {
    return run.template operator()<std::int64_t, 0, 0, 1>();
  }
  const auto aligned = [&](const View& x) {
    return reinterpret_cast<std::uintptr_t>(x.data) % (size_of(x.dtype) * kPack) == 0;
  };
  const bool packed = inner % kPack == 0 && aligned(image) && aligned(pooled) && aligned(index);
  const auto windowed = [&]<int K, int S>() {
    packed ? run.template operator()<std::int32_t, K, S, kPack>()
           : run.template operator()<std::int32_t, K, S, 1>();
  };
  const auto is = [&](int k, int s) { return is_window(rows, k, s) && is_window(cols, k, s); };
  is(2, 2)   ? windowed.template operator()<2, 2>()
  : is(3, 2) ? windowed.template operator()<3, 2>()
             : windowed.template operator()<0, 0>();
}

void max_pool2d(const Stream& stream, const Pool2dParams& params, const View& x, const View& y,
                const View& index) {
  for_floating("max_pool2d", stream, x.dtype, [&]<class T>() {
    with_args<T>(params, x, y, index, y, [&]<int V, class Args>(const Args& args, dim3 blocks) {
      launch("max_pool2d", stream, max_pool_kernel<T, V, Args>, blocks, kBlock, args,
             x.as<Values<T, V>>(), y.as<Values<T, V>>(), index.as<Positions<V>>());
    });
  });
}

void max_pool2d_backward(const Stream& stream, const Pool2dParams& params, const View& grad_y,
                         const View& index, const View& grad_x) {
  for_floating("max_pool2d_backward", stream, grad_x.dtype, [&]<class T>() {
    with_args<T>(params, grad_x, grad_y, index, grad_x,
                 [&]<int V, class Args>(const Args& args, dim3 blocks) {
                   launch("max_pool2d_backward", stream, max_pool_backward_kernel<T, V, Args>,
                          blocks, kBlock, args, grad_y.as<Values<T, V>>(), index.as<Positions<V>>(),
                          grad_x.as<Values<T, V>>());
                 });
  });
}

void avg_pool2d(const Stream& stream, const AvgPool2dParams& params, const View& x, const View& y) {
  for_floating("avg_pool2d", stream, x.dtype, [&]<class T>() {
    with_args<T>(params, x, y, {}, y, [&]<int V, class Args>(const Args& args, dim3 blocks) {
      launch("avg_pool2d", stream, avg_pool_kernel<T, V, Args>, blocks, kBlock, args,
             Divisor<accumulate_t<T>>(params), x.as<Values<T, V>>(), y.as<Values<T, V>>());
    });
  });
}

void avg_pool2d_backward(const Stream& stream, const AvgPool2dParams& params, const View& grad_y,
                         const View& grad_x) {
  for_floating("avg_pool2d_backward", stream, grad_x.dtype, [&]<class T>() {
    with_args<T>(params, grad_x, grad_y, {}, grad_x,
                 [&]<int V, class Args>(const Args& args, dim3 blocks) {
                   launch("avg_pool2d_backward", stream, avg_pool_backward_kernel<T, V, Args>,
                          blocks, kBlock, args, Divisor<accumulate_t<T>>(params),
                          grad_y.as<Values<T, V>>(), grad_x.as<Values<T, V>>());
                 });
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
