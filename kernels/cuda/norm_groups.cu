// Group norm, and layer norm as a case of it. Sums have an order fixed by the shapes. Forward reads
// x three times, for the mean, the variance, and y, which it writes. Backward reads grad_y and x
// twice and writes grad_x; after the first time a row comes from the cache. It reads them once more
// for the gradients of weight and bias: blocks add up chunks of a channel, the last one the chunks.
#include <algorithm>
#include <cmath>

#include "weft/kernels/cuda/access.cuh"
#include "weft/kernels/cuda/families.h"
#include "weft/kernels/cuda/handles.h"
#include "weft/kernels/cuda/launch.h"
#include "weft/kernels/cuda/rows.cuh"

namespace weft::cuda {
namespace {

/// The [N,C,S] of group norm as rows of n elements that share a mean.
struct GroupRows : Rows {
  // Rows of an image, channels of a row, elements of a channel.
  std::int64_t per_image, channels, spatial;
  GroupRows(const View& x, std::int64_t in_groups)
      : Rows(x.shape[0] * in_groups, x.shape[1] / in_groups * x.shape[2]),
        per_image(in_groups),
        channels(x.shape[1] / in_groups),
        spatial(x.shape[2]) {}
  __device__ std::int64_t first_channel(std::int64_t row) const {
    return per_image == 1 ? 0 : row % per_image * channels;
  }
  /// The channel of element i of a row, counted from the row's first one.
  __device__ std::int64_t channel(std::int64_t i) const {
    if (spatial == 1) return i;
    if (n <= 0x7fffffff) return static_cast<std::uint32_t>(i) / static_cast<std::uint32_t>(spatial);
    return i / spatial;
  }
  /// Of channel c's position p; positions count from image to image.
  __device__ std::int64_t offset(std::int64_t c, std::int64_t p) const {
    const std::int64_t all = per_image * channels;
    if (spatial == 1) return p * all + c;
    return (p / spatial * all + c) * spatial + p % spatial;
  }
  /// The row of channel c's position p.
  __device__ std::int64_t row_of(std::int64_t c, std::int64_t p) const {
    const std::int64_t image = spatial == 1 ? p : p / spatial;
    return per_image == 1 ? image : image * per_image + c / channels;
  }
};

/// The mean of a row and 1 / its deviation, computed in A. The sum of the elements is compensated:
/// an element may be near a mean that is much smaller than the others.
template <class A, class T, class C = accumulate_t<T>>
__device__ PairOf<C> statistics(const Rows& rows, Place place, bool exists, const T* x,
                                double eps) {
  const auto n = static_cast<A>(rows.n);
  const auto number = [&](std::int64_t i) { return static_cast<A>(static_cast<C>(x[i])); };
  Compensated<A> all{};
  rows.for_lane(place, exists,
                [&](std::int64_t i) { all = all + Compensated<A>{number(i), A(0)}; });
  all = rows.fold<Sum>(all, place);
  A mean = all.sum / n;
  const auto left = [&] { return (std::fma(-mean, n, all.sum) + all.rest) / n; };
  mean += left();
  const A squares = rows.sum<A>(place, exists, [&]<class>(std::int64_t i) {
    const A d = number(i) - mean;
    return d * d;
  });
  const A var = not_negative(squares / n - left() * left());
  return {static_cast<C>(mean), static_cast<C>(1 / std::sqrt(var + static_cast<A>(eps)))};
}

template <class T>
__global__ void __launch_bounds__(kBlock)
    group_norm_kernel(const GroupRows rows, double eps, const T* x, const T* weight, const T* bias,
                      T* y, accumulate_t<T>* mean, accumulate_t<T>* invstd) {
  using C = accumulate_t<T>;
  rows.for_each([&](std::int64_t row, bool exists, Place place) {
    const std::int64_t from = row * rows.n;
    PairOf<C> of = statistics<C>(rows, place, exists, x + from, eps);
    // The squares of numbers near 1e20, or of differences below 1e-19 where eps is no larger, are
    // beyond f32. All threads of a row find the same.
    if (!(of.b > 0 && of.b < C(1e15))) of = statistics<double>(rows, place, exists, x + from, eps);
    if (!exists) return;
    const C center = of.a, scale = of.b;
    if (place.lane == 0) {
      mean[row] = center;
      invstd[row] = scale;
    }
    const std::int64_t first_channel = rows.first_channel(row);
    rows.for_lane(place, exists, [&](std::int64_t i) {
      const std::int64_t c = first_channel + rows.channel(i);
      const C normal = (static_cast<C>(x[from + i]) - center) * scale;
      y[from + i] = static_cast<T>(normal * value_or(weight, c, C(1)) + value_or(bias, c, C(0)));
    });
  });
}

template <class T>
__global__ void __launch_bounds__(kBlock)
    group_norm_gradient_kernel(const GroupRows rows, const T* grad, const T* x, const T* weight,
                               const accumulate_t<T>* mean, const accumulate_t<T>* invstd,
                               T* grad_x) {
  using C = accumulate_t<T>;
  rows.for_each([&](std::int64_t row, bool exists, Place place) {
    const std::int64_t from = row * rows.n;
    const std::int64_t first_channel = rows.first_channel(row);
    const C center = exists ? mean[row] : C(0), scale = exists ? invstd[row] : C(0);
    // Of element i: the gradient before the weight, and the normal value, which is near 1 even if x
    // is far beyond the root of what f32 holds.
    const auto gradient = [&](std::int64_t i) {
      return static_cast<C>(grad[from + i]) *
             value_or(weight, first_channel + rows.channel(i), C(1));
    };
    const auto normal = [&](std::int64_t i) {
      return (static_cast<C>(x[from + i]) - center) * scale;
    };
    const auto sum = rows.sum<C>(place, exists, [&]<class A>(std::int64_t i) {
      const A g = gradient(i);
      return PairOf<A>{g, g * normal(i)};
    });
    if (!exists) return;
    const C average = sum.a / static_cast<C>(rows.n), slope = sum.b / static_cast<C>(rows.n);
    rows.for_lane(place, exists, [&](std::int64_t i) {
      grad_x[from + i] = static_cast<T>(scale * (gradient(i) - average - normal(i) * slope));
    });
  });
}

/// The n elements of each channel of x [N,C,S]: element p of channel c is at (p / S) C S + p % S +
/// c S.
struct Channels {
  std::int64_t count, n;
  std::int64_t chunks;  // of a channel
  // How a block divides its threads: neighbours read neighbouring elements.
  bool lanes_inner;
  int lanes, groups;
  std::int64_t strips;  // of `groups` channels

  explicit Channels(const View& x)
      : count(x.shape[1]),
        n(x.shape[0] * x.shape[2]),
        lanes_inner(x.shape[2] > 1),
        lanes(lanes_inner ? kBlock : 8),
        groups(kBlock / lanes),
        strips((count + groups - 1) / groups) {
    // A few thousand elements per chunk, and at most as many chunks as fill a large GPU.
    constexpr std::int64_t kPerChunk = 4096, kMaxChunks = 256;
    chunks = std::clamp<std::int64_t>(n / kPerChunk, 1,
                                      std::min(kMaxChunks, most_sharers(strips, groups)));
  }
};

/// The sums of grad and grad (x - mean) invstd over each channel.
template <class T>
__global__ void __launch_bounds__(kBlock)
    affine_gradient_kernel(const __grid_constant__ Channels channels, const GroupRows rows,
                           const T* grad, const T* x, const accumulate_t<T>* mean,
                           const accumulate_t<T>* invstd, T* grad_weight, T* grad_bias,
                           const __grid_constant__ Shares<Pair> shares) {
  using C = accumulate_t<T>;
  __shared__ Pair shared[kBlock];
  const Place place(channels.lanes, channels.groups, channels.lanes_inner);
  // All threads of a block need the same number of rounds for fold_lanes.
  for (std::int64_t unit = blockIdx.x; unit < channels.strips * channels.chunks;
       unit += gridDim.x) {
    const std::int64_t strip = unit % channels.strips, chunk = unit / channels.strips;
    const std::int64_t first = strip * channels.groups, c = first + place.group;
    const bool exists = c < channels.count;
    Pair sum{};
    if (exists) {
      const std::int64_t begin = channels.n * chunk / channels.chunks;
      const std::int64_t end = channels.n * (chunk + 1) / channels.chunks;
      sum = add_runs<C>(begin + place.lane, end, channels.lanes, [&]<class A>(std::int64_t p) {
        const std::int64_t at = rows.offset(c, p), row = rows.row_of(c, p);
        const A g = static_cast<A>(grad[at]);
        return PairOf<A>{g, g * ((static_cast<A>(x[at]) - mean[row]) * invstd[row])};
      });
    }
    sum = fold_lanes<Sum>(sum, shared, place, channels.lanes, channels.groups);
    fold_blocks<Sum>(shares, static_cast<unsigned>(strip), static_cast<unsigned>(chunk),
                     place.lane == 0 ? place.group : -1, sum, Pair{}, [&](int i, Pair total) {
                       if (grad_bias) grad_bias[first + i] = element_cast<T>(total.a);
                       if (grad_weight) grad_weight[first + i] = element_cast<T>(total.b);
                     });
  }
}

}  // namespace

void group_norm(const Stream& stream, const GroupNormArgs& args) {
  const GroupRows rows(args.x, args.groups);
  for_floating("group_norm", stream, args.x.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    launch("group_norm", stream, group_norm_kernel<T>, rows.blocks(), kBlock, rows, args.eps,
           args.x.as<T>(), args.weight.as<T>(), args.bias.as<T>(), args.y.as<T>(),
           args.mean.as<C>(), args.invstd.as<C>());
  });
}

std::size_t group_norm_backward_workspace_bytes(const View& x) {
  const Channels channels(x);
  return static_cast<std::size_t>(channels.count * channels.chunks) * sizeof(Pair);
}

void group_norm_backward(const Stream& stream, const GroupNormGradArgs& args, void* workspace) {
  const GroupRows rows(args.x, args.groups);
  for_floating("group_norm_backward", stream, args.x.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    if (args.grad_x) {
      launch("group_norm_backward", stream, group_norm_gradient_kernel<T>, rows.blocks(), kBlock,
             rows, args.grad_y.as<T>(), args.x.as<T>(), args.weight.as<T>(), args.mean.as<C>(),
             args.invstd.as<C>(), args.grad_x.as<T>());
    }
    if (!args.grad_weight && !args.grad_bias) return;
    const Channels channels(args.x);
    const Shares<Pair> shares{static_cast<Pair*>(workspace), block_counters(stream), channels.count,
                              channels.groups, static_cast<unsigned>(channels.chunks)};
    launch("group_norm_backward", stream, affine_gradient_kernel<T>,
           grid_blocks(channels.strips * channels.chunks, 1), kBlock, channels, rows,
           args.grad_y.as<T>(), args.x.as<T>(), args.mean.as<C>(), args.invstd.as<C>(),
           args.grad_weight.as<T>(), args.grad_bias.as<T>(), shares);
  });
}

}  // namespace weft::cuda
