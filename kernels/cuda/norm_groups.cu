// Group norm, and layer norm as a case of it. Sums are in double, in an order fixed by the shapes:
// blocks add up chunks of a group (the elements that share a mean, or a weight), and the kernel
// that needs the totals adds the chunks.
#include <algorithm>

#include "weft/kernels/cuda/access.cuh"
#include "weft/kernels/cuda/block_fold.cuh"
#include "weft/kernels/cuda/families.h"
#include "weft/kernels/cuda/launch.h"

namespace weft::cuda {
namespace {

/// The n elements of each group: element p of group g is at
/// (p / inner) outer_step + (p % inner) inner_step + g group_step.
struct Groups {
  std::int64_t groups, n;
  std::int64_t inner, outer_step, inner_step, group_step;
  std::int64_t chunks = 0;  // the number of chunks of a group
  // How a block divides its threads: neighbours read neighbouring elements.
  int lanes = 0, block_groups = 0;
  bool lanes_inner = false;

  __device__ std::int64_t offset(std::int64_t g, std::int64_t p) const {
    if (inner == n) return p * inner_step + g * group_step;
    return p / inner * outer_step + p % inner * inner_step + g * group_step;
  }
};

void divide(Groups& g, bool lanes_inner) {
  // A few thousand elements per chunk, and at most as many chunks as fill a large GPU.
  constexpr std::int64_t kPerChunk = 4096, kMaxChunks = 256;
  g.chunks = std::clamp<std::int64_t>(g.n / kPerChunk, 1, kMaxChunks);
  g.lanes = lanes_inner ? kBlock : 8;
  g.block_groups = kBlock / g.lanes;
  g.lanes_inner = lanes_inner;
}

/// The columns of a matrix with adjacent rows.
Groups columns_of(std::int64_t rows, std::int64_t columns) {
  Groups g{columns, rows, rows, 0, columns, 1};
  divide(g, false);
  return g;
}
/// The channels of images whose planes are dense.
Groups planes_of(std::int64_t images, std::int64_t channels, std::int64_t area) {
  Groups g{channels, images * area, area, channels * area, 1, area};
  divide(g, true);
  return g;
}

template <class T>
__device__ double number(T value) {
  return static_cast<double>(static_cast<accumulate_t<T>>(value));
}

/// partial[g * chunks + chunk] = the sum of terms(g, p, offset) over the chunk.
template <class Terms>
__global__ void __launch_bounds__(kBlock)
    sums_kernel(const __grid_constant__ Groups args, const Terms terms, Pair* partial) {
  __shared__ Pair shared[kBlock];
  const Place place(args.lanes, args.block_groups, args.lanes_inner);
  const std::int64_t strips = (args.groups + args.block_groups - 1) / args.block_groups;
  // All threads of a block need the same number of rounds for fold_lanes.
  for (std::int64_t unit = blockIdx.x; unit < strips * args.chunks; unit += gridDim.x) {
    const std::int64_t g = unit % strips * args.block_groups + place.group;
    const std::int64_t chunk = unit / strips;
    Pair sum{};
    if (g < args.groups) {
      const std::int64_t end = args.n * (chunk + 1) / args.chunks;
      for (std::int64_t p = args.n * chunk / args.chunks + place.lane; p < end; p += args.lanes) {
        sum = AddPairs::fold(sum, terms(g, p, args.offset(g, p)));
      }
    }
    sum = fold_lanes<AddPairs>(sum, shared, place, args.lanes, args.block_groups);
    if (g < args.groups && place.lane == 0) partial[g * args.chunks + chunk] = sum;
  }
}

template <class Terms>
void sums(const char* name, const Stream& stream, const Groups& groups, const Terms& terms,
          Pair* partial) {
  const std::int64_t strips = (groups.groups + groups.block_groups - 1) / groups.block_groups;
  launch(name, stream, sums_kernel<Terms>, grid_blocks(strips * groups.chunks, 1), kBlock, groups,
         terms, partial);
}

__device__ Pair total(const Pair* partial, std::int64_t g, std::int64_t chunks) {
  Pair sum{};
  for (std::int64_t k = 0; k < chunks; ++k) sum = AddPairs::fold(sum, partial[g * chunks + k]);
  return sum;
}

/// Sums of x - shift and its square; the shift is the group's first element.
template <class T>
struct Moments {
  const T* x;
  std::int64_t group_step;
  __device__ Pair operator()(std::int64_t g, std::int64_t, std::int64_t at) const {
    const double d = number(x[at]) - number(x[g * group_step]);
    return {d, d * d};
  }
};

template <class T>
__device__ double value_or(const T* values, std::int64_t i, double otherwise) {
  return values ? number(values[i]) : otherwise;
}

template <class T>
__device__ T stored(double value) {
  return static_cast<T>(static_cast<accumulate_t<T>>(value));
}

// A warp processes a row of up to this many elements, a block a longer one.
constexpr std::int64_t kLongRow = 1024;

/// The [N,C,S] of group norm as rows of n elements that share a mean.
struct RowArgs {
  std::int64_t rows, n;
  std::int64_t per_image, channels, spatial;  // rows of an image; channels of a row; their elements
  int lanes, groups;                          // how a block divides its threads
  RowArgs(const View& x, std::int64_t in_groups)
      : rows(x.shape[0] * in_groups),
        n(x.shape[1] / in_groups * x.shape[2]),
        per_image(in_groups),
        channels(x.shape[1] / in_groups),
        spatial(x.shape[2]),
        lanes(n > kLongRow ? kBlock : 32),
        groups(kBlock / lanes) {}
  __device__ std::int64_t first_channel(std::int64_t row) const {
    return per_image == 1 ? 0 : row % per_image * channels;
  }
  /// The channel of element i of a row, counted from the row's first one.
  __device__ std::int64_t channel(std::int64_t i) const {
    if (spatial == 1) return i;
    if (n <= 0x7fffffff) return static_cast<std::uint32_t>(i) / static_cast<std::uint32_t>(spatial);
    return i / spatial;
  }
  /// The row of channel c's position p; positions count from image to image.
  __device__ std::int64_t row_of(std::int64_t c, std::int64_t p) const {
    const std::int64_t image = spatial == 1 ? p : p / spatial;
    return per_image == 1 ? image : image * per_image + c / channels;
  }
};

/// grad and grad (x - mean) invstd, which are summed over channels.
template <class T>
struct AffineProducts {
  RowArgs rows;
  const T* grad;
  const T* x;
  const accumulate_t<T>* mean;
  const accumulate_t<T>* invstd;
  __device__ Pair operator()(std::int64_t c, std::int64_t p, std::int64_t at) const {
    const std::int64_t row = rows.row_of(c, p);
    const double value = number(grad[at]);
    const double d = number(x[at]) - static_cast<double>(mean[row]);
    return {value, value * d * static_cast<double>(invstd[row])};
  }
};

template <class T>
__global__ void __launch_bounds__(kBlock)
    group_norm_kernel(const RowArgs args, double eps, const T* x, const T* weight, const T* bias,
                      T* y, accumulate_t<T>* mean, accumulate_t<T>* invstd) {
  using C = accumulate_t<T>;
  __shared__ Pair shared[kBlock];
  const Place place(args.lanes, args.groups, true);
  const Moments<T> moments{x, args.n};
  for (std::int64_t first = std::int64_t{blockIdx.x} * args.groups; first < args.rows;
       first += std::int64_t{gridDim.x} * args.groups) {
    const std::int64_t row = first + place.group;
    const bool exists = row < args.rows;
    Pair sum{};
    if (exists) {
      for (std::int64_t i = place.lane; i < args.n; i += args.lanes) {
        sum = AddPairs::fold(sum, moments(row, i, row * args.n + i));
      }
    }
    sum = fold_lanes<AddPairs>(sum, shared, place, args.lanes, args.groups);
    if (!exists) continue;
    const auto count = static_cast<double>(args.n);
    const C center = static_cast<C>(number(x[row * args.n]) + sum.a / count);
    const double var = not_negative(sum.b - sum.a * sum.a / count) / count;
    const C scale = static_cast<C>(1 / sqrt(var + eps));
    if (place.lane == 0) {
      mean[row] = center;
      invstd[row] = scale;
    }
    const std::int64_t first_channel = args.first_channel(row);
    for (std::int64_t i = place.lane; i < args.n; i += args.lanes) {
      const std::int64_t c = first_channel + args.channel(i);
      const C normal = (static_cast<C>(x[row * args.n + i]) - center) * scale;
      const C factor = weight ? static_cast<C>(weight[c]) : C(1);
      y[row * args.n + i] =
          static_cast<T>(normal * factor + (bias ? static_cast<C>(bias[c]) : C(0)));
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kBlock)
    group_norm_gradient_kernel(const RowArgs args, const T* grad, const T* x, const T* weight,
                               const accumulate_t<T>* mean, const accumulate_t<T>* invstd,
                               T* grad_x) {
  using C = accumulate_t<T>;
  __shared__ Pair shared[kBlock];
  const Place place(args.lanes, args.groups, true);
  for (std::int64_t first = std::int64_t{blockIdx.x} * args.groups; first < args.rows;
       first += std::int64_t{gridDim.x} * args.groups) {
    const std::int64_t row = first + place.group;
    const bool exists = row < args.rows;
    const std::int64_t from = row * args.n;
    const std::int64_t first_channel = args.first_channel(row);
    const C center = exists ? mean[row] : C(0);
    Pair sum{};
    if (exists) {
      for (std::int64_t i = place.lane; i < args.n; i += args.lanes) {
        const std::int64_t c = first_channel + args.channel(i);
        const double value = number(grad[from + i]) * value_or(weight, c, 1);
        const double d = number(x[from + i]) - static_cast<double>(center);
        sum = AddPairs::fold(sum, {value, value * d});
      }
    }
    sum = fold_lanes<AddPairs>(sum, shared, place, args.lanes, args.groups);
    if (!exists) continue;
    const auto count = static_cast<double>(args.n);
    const C scale = invstd[row];
    const C average = static_cast<C>(sum.a / count);
    const C slope = scale * scale * static_cast<C>(sum.b / count);
    for (std::int64_t i = place.lane; i < args.n; i += args.lanes) {
      const std::int64_t c = first_channel + args.channel(i);
      const C factor = weight ? static_cast<C>(weight[c]) : C(1);
      const C d = static_cast<C>(x[from + i]) - center;
      grad_x[from + i] =
          static_cast<T>(scale * (static_cast<C>(grad[from + i]) * factor - average - d * slope));
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kBlock)
    affine_totals_kernel(std::int64_t channels, std::int64_t chunks, const Pair* partial,
                         T* grad_weight, T* grad_bias) {
  for (std::int64_t c = std::int64_t{blockIdx.x} * kBlock + threadIdx.x; c < channels;
       c += std::int64_t{gridDim.x} * kBlock) {
    const Pair sum = total(partial, c, chunks);
    if (grad_bias) grad_bias[c] = stored<T>(sum.a);
    if (grad_weight) grad_weight[c] = stored<T>(sum.b);
  }
}

/// The channels of x [N,C,S].
Groups affine_groups(const View& x) {
  if (x.shape[2] == 1) return columns_of(x.shape[0], x.shape[1]);
  return planes_of(x.shape[0], x.shape[1], x.shape[2]);
}

}  // namespace

void group_norm(const Stream& stream, const GroupNormArgs& args) {
  const RowArgs rows(args.x, args.groups);
  for_floating("group_norm", stream, args.x.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    launch("group_norm", stream, group_norm_kernel<T>, grid_blocks(rows.rows, rows.groups), kBlock,
           rows, args.eps, args.x.as<T>(), args.weight.as<T>(), args.bias.as<T>(), args.y.as<T>(),
           args.mean.as<C>(), args.invstd.as<C>());
  });
}

std::size_t group_norm_backward_workspace_bytes(const View& x) {
  const Groups groups = affine_groups(x);
  return static_cast<std::size_t>(groups.groups * groups.chunks) * sizeof(Pair);
}

void group_norm_backward(const Stream& stream, const GroupNormGradArgs& args, void* workspace) {
  const RowArgs rows(args.x, args.groups);
  auto* const partial = static_cast<Pair*>(workspace);
  for_floating("group_norm_backward", stream, args.x.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    if (args.grad_x) {
      launch("group_norm_backward", stream, group_norm_gradient_kernel<T>,
             grid_blocks(rows.rows, rows.groups), kBlock, rows, args.grad_y.as<T>(), args.x.as<T>(),
             args.weight.as<T>(), args.mean.as<C>(), args.invstd.as<C>(), args.grad_x.as<T>());
    }
    if (!args.grad_weight && !args.grad_bias) return;
    const Groups groups = affine_groups(args.x);
    sums("group_norm_backward", stream, groups,
         AffineProducts<T>{rows, args.grad_y.as<T>(), args.x.as<T>(), args.mean.as<C>(),
                           args.invstd.as<C>()},
         partial);
    launch("group_norm_backward", stream, affine_totals_kernel<T>, grid_blocks(groups.groups),
           kBlock, groups.groups, groups.chunks, partial, args.grad_weight.as<T>(),
           args.grad_bias.as<T>());
  });
}

}  // namespace weft::cuda
