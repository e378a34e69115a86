// Batch norm and group norm. Sums are in double, in an order fixed by the shapes: blocks add up
// chunks of a group (the elements that share a mean), and the kernel that needs the totals adds the
// chunks.
#include <algorithm>

#include "weft/kernels/cuda/access.cuh"
#include "weft/kernels/cuda/block_fold.cuh"
#include "weft/kernels/cuda/families.h"
#include "weft/kernels/cuda/launch.h"
#include "weft/kernels/functors.h"

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
Groups channels_of(const View& x) {
  const std::int64_t channels = x.shape[1], area = x.shape[2] * x.shape[3];
  if (channels > 1 && x.strides[1] == 1) return columns_of(x.shape[0] * area, channels);
  return planes_of(x.shape[0], channels, area);
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

template <class T>
struct BatchNormPointers {
  using C = accumulate_t<T>;
  const T* x;
  const C* weight;
  const C* bias;
  C* running_mean;
  C* running_var;
  std::int64_t* num_batches;
  T* y;
  C* mean;
  C* invstd;
};

__global__ void count_batch_kernel(std::int64_t* num_batches) { ++*num_batches; }

template <class T>
__global__ void __launch_bounds__(kBlock)
    statistics_kernel(const __grid_constant__ Groups args, const BatchNormParams params,
                      const BatchNormPointers<T> to, const Pair* partial) {
  using C = accumulate_t<T>;
  const auto n = static_cast<double>(args.n);
  for (std::int64_t g = std::int64_t{blockIdx.x} * kBlock + threadIdx.x; g < args.groups;
       g += std::int64_t{gridDim.x} * kBlock) {
    double mean, var;
    if (params.training) {
      const Pair sum = total(partial, g, args.chunks);
      const double squares = not_negative(sum.b - sum.a * sum.a / n);
      mean = number(to.x[g * args.group_step]) + sum.a / n;
      var = squares / n;
      const double momentum =
          params.cumulative ? 1 / static_cast<double>(*to.num_batches) : params.momentum;
      if (to.running_mean) {
        C& running = to.running_mean[g];
        running = static_cast<C>((1 - momentum) * static_cast<double>(running) + momentum * mean);
      }
      if (to.running_var) {
        C& running = to.running_var[g];
        running = static_cast<C>((1 - momentum) * static_cast<double>(running) +
                                 momentum * squares / (n - 1));
      }
    } else {
      mean = value_or(to.running_mean, g, 0);
      var = value_or(to.running_var, g, 1);
    }
    to.mean[g] = static_cast<C>(mean);
    to.invstd[g] = static_cast<C>(1 / sqrt(var + params.eps));
  }
}

/// Element i belongs to channel i / span % channels.
struct Channels {
  std::int64_t n, span, channels;
  explicit Channels(const View& x)
      : n(x.numel()),
        span(x.shape[1] > 1 && x.strides[1] == 1 ? 1 : x.shape[2] * x.shape[3]),
        channels(x.shape[1]) {}
  __device__ std::int64_t of(std::int64_t i) const {
    if (n <= 0x7fffffff) {
      return static_cast<std::uint32_t>(i) / static_cast<std::uint32_t>(span) %
             static_cast<std::uint32_t>(channels);
    }
    return i / span % channels;
  }
};

/// relu, leaky_relu or nothing.
struct Activation {
  bool on;
  double negative_slope;
  explicit Activation(const BatchNormParams& params)
      : on(params.negative_slope.has_value()), negative_slope(params.negative_slope.value_or(0)) {}
  template <class C>
  __device__ C forward(C v) const {
    if (!on) return v;
    return negative_slope == 0 ? functor::Relu{}.fwd(v)
                               : functor::LeakyRelu{{negative_slope}}.fwd(v);
  }
  /// v: the argument of the activation, or any number with its sign.
  template <class C>
  __device__ C backward(C grad, C v) const {
    if (!on) return grad;
    return negative_slope == 0 ? functor::Relu{}.bwd(grad, v)
                               : functor::LeakyRelu{{negative_slope}}.bwd(grad, v);
  }
};

/// The normalised value as it is stored. It is rounded once after the product, independent of the
/// surrounding code: backward must find exactly the sign that forward had.
template <class T>
__device__ accumulate_t<T> normalised(T x, accumulate_t<T> mean, accumulate_t<T> invstd,
                                      const accumulate_t<T>* weight, const accumulate_t<T>* bias,
                                      std::int64_t c) {
  using C = accumulate_t<T>;
  const C scale = invstd * (weight ? weight[c] : C(1));
  const C offset = bias ? bias[c] : C(0);
  return static_cast<C>(static_cast<T>(fma(static_cast<C>(x) - mean, scale, offset)));
}

template <class T>
__global__ void __launch_bounds__(kBlock)
    normalize_kernel(const Channels channels, const BatchNormPointers<T> at, const T* addend,
                     const Activation act) {
  using C = accumulate_t<T>;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x; i < channels.n;
       i += std::int64_t{gridDim.x} * kBlock) {
    const std::int64_t c = channels.of(i);
    C v = normalised(at.x[i], at.mean[c], at.invstd[c], at.weight, at.bias, c);
    if (addend) v = static_cast<C>(static_cast<T>(v + static_cast<C>(addend[i])));
    at.y[i] = static_cast<T>(act.forward(v));
  }
}

std::size_t batch_norm_workspace_bytes(const View& x) {
  const Groups groups = channels_of(x);
  return static_cast<std::size_t>(groups.groups * groups.chunks) * sizeof(Pair);
}

void batch_norm(const Stream& stream, const BatchNormParams& params, const BatchNormArgs& args,
                void* workspace) {
  const Groups groups = channels_of(args.x);
  auto* const partial = static_cast<Pair*>(workspace);
  for_floating("batch_norm", stream, args.x.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    const BatchNormPointers<T> pointers{
        args.x.as<T>(),           args.weight.as<C>(),
        args.bias.as<C>(),        args.running_mean.as<C>(),
        args.running_var.as<C>(), args.num_batches.as<std::int64_t>(),
        args.y.as<T>(),           args.mean.as<C>(),
        args.invstd.as<C>()};
    if (params.training) {
      if (pointers.num_batches) {
        launch("batch_norm", stream, count_batch_kernel, 1, 1, pointers.num_batches);
      }
      sums("batch_norm", stream, groups, Moments<T>{pointers.x, groups.group_step}, partial);
    }
    launch("batch_norm", stream, statistics_kernel<T>, grid_blocks(groups.groups), kBlock, groups,
           params, pointers, partial);
    launch("batch_norm", stream, normalize_kernel<T>, grid_blocks(args.x.numel()), kBlock,
           Channels(args.x), pointers, args.addend.as<T>(), Activation(params));
  });
}

template <class T>
struct BatchNormGradPointers {
  using C = accumulate_t<T>;
  const T* grad_y;
  const T* x;
  const C* weight;
  const C* mean;
  const C* invstd;
  T* grad_x;
  C* grad_weight;
  C* grad_bias;
  const C* bias;
  const T* y;  // null: x gives the sign
  T* grad_addend;
  Activation act;

  /// The gradient before the activation, rounded as it is stored.
  __device__ T before_activation(std::int64_t i, std::int64_t c) const {
    if (!act.on) return grad_y[i];
    const C v = y ? static_cast<C>(y[i]) : normalised(x[i], mean[c], invstd[c], weight, bias, c);
    return static_cast<T>(act.backward(static_cast<C>(grad_y[i]), v));
  }
};

/// grad and grad (x - mean) of the channel, where grad is the gradient before the activation; it is
/// also stored if wanted.
template <class T>
struct ChannelProducts {
  BatchNormGradPointers<T> of;
  __device__ Pair operator()(std::int64_t g, std::int64_t, std::int64_t at) const {
    const T grad = of.before_activation(at, g);
    if (of.grad_addend) of.grad_addend[at] = grad;
    const double value = number(grad);
    return {value, value * (number(of.x[at]) - static_cast<double>(of.mean[g]))};
  }
};

/// Writes the totals to each channel's first chunk.
template <class T>
__global__ void __launch_bounds__(kBlock)
    totals_kernel(const __grid_constant__ Groups args, const BatchNormGradPointers<T> to,
                  Pair* partial) {
  using C = accumulate_t<T>;
  for (std::int64_t g = std::int64_t{blockIdx.x} * kBlock + threadIdx.x; g < args.groups;
       g += std::int64_t{gridDim.x} * kBlock) {
    const Pair sum = total(partial, g, args.chunks);
    partial[g * args.chunks] = sum;
    if (to.grad_bias) to.grad_bias[g] = static_cast<C>(sum.a);
    if (to.grad_weight) {
      to.grad_weight[g] = static_cast<C>(sum.b * static_cast<double>(to.invstd[g]));
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kBlock)
    gradient_kernel(const Channels channels, double count, std::int64_t chunks,
                    const BatchNormGradPointers<T> at, const Pair* totals) {
  using C = accumulate_t<T>;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x; i < channels.n;
       i += std::int64_t{gridDim.x} * kBlock) {
    const std::int64_t c = channels.of(i);
    const C invstd = at.invstd[c];
    const C scale = invstd * (at.weight ? at.weight[c] : C(1));
    C value = static_cast<C>(at.grad_addend ? at.grad_addend[i] : at.before_activation(i, c));
    if (totals) {  // training
      const Pair sum = totals[c * chunks];
      const C d = static_cast<C>(at.x[i]) - at.mean[c];
      value -=
          static_cast<C>(sum.a / count) + d * (invstd * invstd * static_cast<C>(sum.b / count));
    }
    at.grad_x[i] = static_cast<T>(scale * value);
  }
}

void batch_norm_backward(const Stream& stream, const BatchNormParams& params,
                         const BatchNormGradArgs& args, void* workspace) {
  const Groups groups = channels_of(args.x);
  auto* const partial = static_cast<Pair*>(workspace);
  for_floating("batch_norm_backward", stream, args.x.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    const BatchNormGradPointers<T> pointers{
        args.grad_y.as<T>(), args.x.as<T>(),      args.weight.as<C>(),      args.mean.as<C>(),
        args.invstd.as<C>(), args.grad_x.as<T>(), args.grad_weight.as<C>(), args.grad_bias.as<C>(),
        args.bias.as<C>(),   args.y.as<T>(),      args.grad_addend.as<T>(), Activation(params)};
    if (params.training || args.grad_weight || args.grad_bias || args.grad_addend) {
      sums("batch_norm_backward", stream, groups, ChannelProducts<T>{pointers}, partial);
      launch("batch_norm_backward", stream, totals_kernel<T>, grid_blocks(groups.groups), kBlock,
             groups, pointers, partial);
    }
    if (!args.grad_x) return;
    launch("batch_norm_backward", stream, gradient_kernel<T>, grid_blocks(args.x.numel()), kBlock,
           Channels(args.x), static_cast<double>(groups.n), groups.chunks, pointers,
           params.training ? partial : nullptr);
  });
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

void group_norm(const Stream& stream, const GroupNormArgs& args) {
  const RowArgs rows(args.x, args.groups);
  for_floating("group_norm", stream, args.x.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    launch("group_norm", stream, group_norm_kernel<T>, grid_blocks(rows.rows, rows.groups), kBlock,
           rows, args.eps, args.x.as<T>(), args.weight.as<T>(), args.bias.as<T>(), args.y.as<T>(),
           args.mean.as<C>(), args.invstd.as<C>());
  });
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

}  // namespace

NormKernels norm_kernels() {
  return {.batch_norm_workspace_bytes = batch_norm_workspace_bytes,
          .batch_norm = batch_norm,
          .batch_norm_backward = batch_norm_backward,
          .group_norm = group_norm,
          .group_norm_backward_workspace_bytes = group_norm_backward_workspace_bytes,
          .group_norm_backward = group_norm_backward};
}

}  // namespace weft::cuda
