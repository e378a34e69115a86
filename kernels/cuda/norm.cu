// Batch norm. In training, forward passes over the memory of the images twice: moments_kernel reads
// x; normalize_kernel reads x and the addend and writes y. So does backward: products_kernel reads
// grad_y, x and, for an activation after an addition, y, and writes grad_addend; gradient_kernel
// reads grad_addend, or the same again, and x, and writes grad_x. In between, a small kernel adds
// up what the blocks have found, a warp for each channel.
//
// A thread sums in the type of computing, image_packs.cuh the rest.
#include <algorithm>

#include "weft/kernels/cuda/families.h"
#include "weft/kernels/cuda/image_packs.cuh"
#include "weft/kernels/cuda/launch.h"
#include "weft/kernels/functors.h"

namespace weft::cuda {
namespace {

constexpr int kWarps = kBlock / kWarp;

/// Sets N numbers of each channel of the block, by of_channel(c, numbers).
template <class C, int Own, int N, class F>
__device__ void set_constants(C (&constants)[N][Own][kMostGroups], const Packs& packs,
                              const Part& part, const F& of_channel) {
  const std::int64_t i = threadIdx.x, channels = packs.block_groups * Own;
  const std::int64_t c = part.strip * channels + i;
  if (i < channels && c < packs.channels) {
    C numbers[N];
    of_channel(c, numbers);
#pragma unroll
    for (int k = 0; k < N; ++k) constants[k][i % Own][i / Own] = numbers[k];
  }
  __syncthreads();
}

/// Writes what the block has found of its channels.
template <int Own>
__device__ void store_partial(const Packs& packs, const Part& part, Pair sum, Pair* partial) {
  const std::int64_t i = threadIdx.x, channels = packs.block_groups * Own;
  const std::int64_t c = part.strip * channels + i;
  if (i < channels && c < packs.channels) partial[c * packs.chunks + part.chunk] = sum;
}

std::size_t batch_norm_workspace_bytes(const View& x) {
  const unsigned chunks = std::max(packs_of(x, 1).chunks, packs_of(x, widest(x)).chunks);
  return static_cast<std::size_t>(x.shape[1]) * chunks * sizeof(Pair);
}

unsigned blocks_of_channels(const Packs& packs) {
  return static_cast<unsigned>((packs.channels + kWarps - 1) / kWarps);
}

/// The sum over the chunks of channel c, which a warp has. All threads of the warp call it.
__device__ Pair total(const Pair* partial, std::int64_t c, const Packs& packs, Place place) {
  Pair sum{};
  for (unsigned k = place.lane; c < packs.channels && k < packs.chunks; k += kWarp) {
    sum = AddPairs::fold(sum, partial[c * packs.chunks + k]);
  }
  return fold_warp<AddPairs>(sum, kWarp);
}

// --- Forward -------------------------------------------------------------------------------------

/// For each channel the sums of x - shift and of its square, where shift is the channel's first
/// element. In each piece a thread takes off a number near its mean so far instead, at first its
/// own first element: an unusual one costs digits in that piece alone.
template <class T, int W, int Own>
__global__ void __launch_bounds__(kBlock, kSumming)
    moments_kernel(const __grid_constant__ Packs packs, const T* x, accumulate_t<T>* shifts,
                   std::int64_t* num_batches, Pair* partial) {
  using C = accumulate_t<T>;
  __shared__ double sums[Own][kBlock], squares[Own][kBlock];
  __shared__ C common[1][Own][kMostGroups];
  if (num_batches && blockIdx.x == 0 && threadIdx.x == 0) ++*num_batches;
  const int thread = static_cast<int>(threadIdx.x);
  Part part(packs, blockIdx.x);
  set_constants(common, packs, part, [&](std::int64_t c, C* to) {
    to[0] = static_cast<C>(x[c / Own * packs.group_step + c % Own]);
    if (part.chunk == 0) shifts[c] = to[0];
  });
  const std::int64_t begin[1] = {part.left > 0 ? part.origin : 0};
  Elements<T, W> shift = Loaded<T, W, 1>(x, begin).packs[0];
#pragma unroll
  for (int k = 0; k < Own; ++k) sums[k][thread] = squares[k][thread] = 0;
  C seen = 0;
  while (part.left > 0) {
    const int here = min(part.left, kPiece * Own / W);
    C a[Own] = {}, b[Own] = {};
    part.for_packs<4, Own == 1>(packs, here, [&]<int U>(const std::int64_t(&at)[U]) {
      const Loaded<T, W, U> in(x, at);
#pragma unroll
      for (int k = 0; k < W; ++k) {
#pragma unroll
        for (int u = 0; u < U; ++u) {
          const C d = in.packs[u].get(k) - shift.get(k % Own);
          a[k % Own] += d;
          b[k % Own] += d * d;
        }
      }
    });
    const double n = here * (W / Own);
    seen += static_cast<C>(n);
    const C share = C(1) / seen;
#pragma unroll
    for (int k = 0; k < Own; ++k) {
      const C origin = common[0][k][part.place.group];
      const double d = static_cast<double>(shift.get(k)) - static_cast<double>(origin);
      const double sum = a[k];
      squares[k][thread] += b[k] + d * (2 * sum + n * d);
      sums[k][thread] += sum + n * d;
      shift.set(k, origin + static_cast<C>(sums[k][thread]) * share);
    }
  }
  Pair total;
  total.a = channel_sum<Own>(packs, sums);
  total.b = channel_sum<Own>(packs, squares);
  store_partial<Own>(packs, Part(packs, found_again(blockIdx.x)), total, partial);
}

template <class C>
struct Statistics {
  C* running_mean;
  C* running_var;
  const std::int64_t* num_batches;
  C* mean;  // in training, the shifts at first
  C* invstd;
};

template <class C>
__global__ void __launch_bounds__(kBlock)
    statistics_kernel(const __grid_constant__ Packs packs, double n, const BatchNormParams params,
                      const Statistics<C> to, const Pair* partial) {
  const Place place(kWarp, kWarps, true);
  const std::int64_t c = std::int64_t{blockIdx.x} * kWarps + place.group;
  const Pair sum = params.training ? total(partial, c, packs, place) : Pair{};
  if (c >= packs.channels || place.lane > 0) return;
  double mean, var;
  if (params.training) {
    const double squares = not_negative(sum.b - sum.a * sum.a / n);
    mean = static_cast<double>(to.mean[c]) + sum.a / n;
    var = squares / n;
    const double momentum =
        params.cumulative ? 1 / static_cast<double>(*to.num_batches) : params.momentum;
    const auto follow = [&](C* running, double batch) {
      if (!running) return;
      running[c] =
          static_cast<C>((1 - momentum) * static_cast<double>(running[c]) + momentum * batch);
    };
    follow(to.running_mean, mean);
    follow(to.running_var, squares / (n - 1));
  } else {
    mean = to.running_mean ? static_cast<double>(to.running_mean[c]) : 0;
    var = to.running_var ? static_cast<double>(to.running_var[c]) : 1;
  }
  to.mean[c] = static_cast<C>(mean);
  to.invstd[c] = static_cast<C>(1 / sqrt(var + params.eps));
}

/// relu or leaky_relu, as functor::Relu and functor::LeakyRelu, or nothing, which has the slope 1.
template <class C>
struct Activation {
  bool on, relu;
  C slope;
  explicit Activation(const BatchNormParams& params)
      : on(params.negative_slope.has_value()),
        relu(params.negative_slope == 0.0),
        slope(static_cast<C>(params.negative_slope.value_or(1))) {}
  __device__ C forward(C v) const {
    if (!on || v > 0) return v;
    return relu ? functor::Relu{}.fwd(v) : v * slope;
  }
  /// Whether the gradient passes unchanged. v: the argument, or any number with its sign.
  __device__ bool passes(C v) const { return relu ? !(v <= 0) : v > 0; }
  __device__ C backward(C grad, bool passes) const {
    const C low = relu ? C(0) : grad * slope;
    return passes ? grad : low;
  }
};

/// The parameters of a normalisation. An empty weight is 1, an empty bias 0.
template <class C>
struct Affine {
  const C* mean;
  const C* invstd;
  const C* weight;
  const C* bias;
  __device__ C scale(std::int64_t c) const { return invstd[c] * (weight ? weight[c] : C(1)); }
  __device__ C offset(std::int64_t c) const { return bias ? bias[c] : C(0); }
};

/// The normalised value as it is stored. It is rounded once after the product, independent of the
/// surrounding code: backward must find exactly the sign that forward had.
template <class T, class C>
__device__ C normalised(C x, C mean, C scale, C offset) {
  return rounded<T>(fma(x - mean, scale, offset));
}

template <class T, int W, int Own, bool adds>
__global__ void __launch_bounds__(kBlock, kMapping)
    normalize_kernel(const __grid_constant__ Packs packs, const T* x, const T* addend, T* y,
                     const Affine<accumulate_t<T>> by, const Activation<accumulate_t<T>> act) {
  using C = accumulate_t<T>;
  __shared__ C constants[3][Own][kMostGroups];
  Part part(packs, blockIdx.x);
  set_constants(constants, packs, part, [&](std::int64_t c, C* to) {
    to[0] = by.mean[c], to[1] = by.scale(c), to[2] = by.offset(c);
  });
  part.for_packs<adds ? 2 : 4, Own == 1>(packs, part.left, [&]<int U>(const std::int64_t(&at)[U]) {
    Loaded<T, W, U> v(x, at);
    const Loaded<T, W, U> more((adds ? addend : x), at);
#pragma unroll
    for (int k = 0; k < W; ++k) {
      const auto constant = [&](int i) { return constants[i][k % Own][part.place.group]; };
#pragma unroll
      for (int u = 0; u < U; ++u) {
        C value = normalised<T>(v.packs[u].get(k), constant(0), constant(1), constant(2));
        if (adds) value = rounded<T>(value + more.packs[u].get(k));
        v.packs[u].set(k, act.forward(value));
      }
    }
    v.store(y, at);
  });
}

void batch_norm(const Stream& stream, const BatchNormParams& params, const BatchNormArgs& args,
                void* workspace) {
  const char* const op = "batch_norm";
  auto* const partial = static_cast<Pair*>(workspace);
  for_floating(op, stream, args.x.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    const Statistics<C> statistics{args.running_mean.as<C>(), args.running_var.as<C>(),
                                   args.num_batches.as<std::int64_t>(), args.mean.as<C>(),
                                   args.invstd.as<C>()};
    const Affine<C> by{statistics.mean, statistics.invstd, args.weight.as<C>(), args.bias.as<C>()};
    with_widths<T>(args.x, {&args.y, &args.addend}, [&]<int W, int Own>() {
      const Packs packs = packs_of(args.x, W);
      const unsigned blocks = packs.strips * packs.chunks;
      if (params.training) {
        launch(op, stream, moments_kernel<T, W, Own>, blocks, kBlock, packs, args.x.as<T>(),
               statistics.mean, args.num_batches.as<std::int64_t>(), partial);
      }
      launch(op, stream, statistics_kernel<C>, blocks_of_channels(packs), kBlock, packs,
             static_cast<double>(args.x.numel() / packs.channels), params, statistics, partial);
      const auto normalize =
          args.addend ? normalize_kernel<T, W, Own, true> : normalize_kernel<T, W, Own, false>;
      launch(op, stream, normalize, blocks, kBlock, packs, args.x.as<T>(), args.addend.as<T>(),
             args.y.as<T>(), by, Activation<C>(params));
    });
  });
}

// --- Backward ------------------------------------------------------------------------------------

template <class T>
struct Gradient {
  using C = accumulate_t<T>;
  const T* grad_y;
  const T* x;
  const T* y;  // of an activation after an addition; else x gives the sign
  Affine<C> by;
  Activation<C> act;

  /// That before the activation, rounded as it is stored.
  __device__ C before(C grad, bool passes) const { return rounded<T>(act.backward(grad, passes)); }
  /// A bit for each element of y, whether the gradient passes: y itself would take many registers.
  template <int W, int U>
  __device__ std::uint32_t find_passes(const std::int64_t (&at)[U]) const {
    const Loaded<T, W, U> v(y, at);
    std::uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < U * W; ++i) {
      bits |= static_cast<std::uint32_t>(act.passes(v.packs[i / W].get(i % W))) << i;
    }
    reload();
    return bits;
  }
};

/// For each channel the sums of g and g (x - mean), where g is the gradient before the activation,
/// which is also that of the addend.
template <class T, int W, int Own, bool has_y>
__global__ void __launch_bounds__(kBlock, kSumming)
    products_kernel(const __grid_constant__ Packs packs, const Gradient<T> of, T* grad_addend,
                    Pair* partial) {
  using C = accumulate_t<T>;
  __shared__ double parts[Own][kBlock];
  __shared__ C constants[3][Own][kMostGroups];
  Part part(packs, blockIdx.x);
  set_constants(constants, packs, part, [&](std::int64_t c, C* to) {
    to[0] = of.by.mean[c], to[1] = of.by.scale(c), to[2] = of.by.offset(c);
  });
  C sum[Own] = {}, product[Own] = {};
  part.for_packs<2, Own == 1>(packs, part.left, [&]<int U>(const std::int64_t(&at)[U]) {
    std::uint32_t passes = 0;
    if (has_y) passes = of.template find_passes<W>(at);
    Loaded<T, W, U> g(of.grad_y, at);
    const Loaded<T, W, U> x(of.x, at);
#pragma unroll
    for (int k = 0; k < W; ++k) {
      const auto constant = [&](int i) { return constants[i][k % Own][part.place.group]; };
#pragma unroll
      for (int u = 0; u < U; ++u) {
        const C value = x.packs[u].get(k);
        const bool pass =
            has_y ? passes >> (u * W + k) & 1
                  : of.act.passes(normalised<T>(value, constant(0), constant(1), constant(2)));
        const C grad = of.before(g.packs[u].get(k), pass);
        if (has_y) g.packs[u].set(k, grad);
        sum[k % Own] += grad;
        product[k % Own] += grad * (value - constant(0));
      }
    }
    if (has_y && grad_addend) g.store(grad_addend, at);
  });
  Pair of_block;
#pragma unroll
  for (int k = 0; k < Own; ++k) parts[k][threadIdx.x] = sum[k];
  of_block.a = channel_sum<Own>(packs, parts);
#pragma unroll
  for (int k = 0; k < Own; ++k) parts[k][threadIdx.x] = product[k];
  of_block.b = channel_sum<Own>(packs, parts);
  store_partial<Own>(packs, Part(packs, found_again(blockIdx.x)), of_block, partial);
}

/// Writes the totals to each channel's first chunk.
template <class C>
__global__ void __launch_bounds__(kBlock)
    totals_kernel(const __grid_constant__ Packs packs, const C* invstd, C* grad_weight,
                  C* grad_bias, Pair* partial) {
  const Place place(kWarp, kWarps, true);
  const std::int64_t c = std::int64_t{blockIdx.x} * kWarps + place.group;
  const Pair sum = total(partial, c, packs, place);
  if (c >= packs.channels || place.lane > 0) return;
  partial[c * packs.chunks] = sum;
  if (grad_bias) grad_bias[c] = static_cast<C>(sum.a);
  if (grad_weight) grad_weight[c] = static_cast<C>(sum.b * static_cast<double>(invstd[c]));
}

/// In training, grad_x = scale (g - (average + d slope)); in evaluation there are no totals.
template <class T, int W, int Own, bool has_y>
__global__ void __launch_bounds__(kBlock, kMapping)
    gradient_kernel(const __grid_constant__ Packs packs, const Gradient<T> of, double n,
                    const Pair* totals, T* grad_x) {
  using C = accumulate_t<T>;
  __shared__ C constants[5][Own][kMostGroups];
  Part part(packs, blockIdx.x);
  set_constants(constants, packs, part, [&](std::int64_t c, C* to) {
    to[0] = of.by.mean[c], to[1] = of.by.scale(c), to[2] = of.by.offset(c);
    const Pair sum = totals ? totals[c * packs.chunks] : Pair{};
    to[3] = static_cast<C>(sum.a / n);
    to[4] = of.by.invstd[c] * of.by.invstd[c] * static_cast<C>(sum.b / n);
  });
  part.for_packs<2, Own == 1>(packs, part.left, [&]<int U>(const std::int64_t(&at)[U]) {
    std::uint32_t passes = 0;
    if (has_y) passes = of.template find_passes<W>(at);
    Loaded<T, W, U> g(of.grad_y, at);
    const Loaded<T, W, U> x(of.x, at);
#pragma unroll
    for (int k = 0; k < W; ++k) {
      const auto constant = [&](int i) { return constants[i][k % Own][part.place.group]; };
#pragma unroll
      for (int u = 0; u < U; ++u) {
        const C value = x.packs[u].get(k);
        const bool pass =
            has_y ? passes >> (u * W + k) & 1
                  : of.act.passes(normalised<T>(value, constant(0), constant(1), constant(2)));
        C grad = of.before(g.packs[u].get(k), pass);
        if (totals) grad -= constant(3) + (value - constant(0)) * constant(4);
        g.packs[u].set(k, constant(1) * grad);
      }
    }
    g.store(grad_x, at);
  });
}

void batch_norm_backward(const Stream& stream, const BatchNormParams& params,
                         const BatchNormGradArgs& args, void* workspace) {
  const char* const op = "batch_norm_backward";
  auto* const partial = static_cast<Pair*>(workspace);
  for_floating(op, stream, args.x.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    Gradient<T> of{args.grad_y.as<T>(),
                   args.x.as<T>(),
                   args.y.as<T>(),
                   {args.mean.as<C>(), args.invstd.as<C>(), args.weight.as<C>(), args.bias.as<C>()},
                   Activation<C>(params)};
    const auto run = [&]<int W, int Own>() {
      const Packs packs = packs_of(args.x, W);
      const unsigned blocks = packs.strips * packs.chunks;
      if (params.training || args.grad_weight || args.grad_bias || args.grad_addend) {
        launch(op, stream,
               of.y ? products_kernel<T, W, Own, true> : products_kernel<T, W, Own, false>, blocks,
               kBlock, packs, of, args.grad_addend.as<T>(), partial);
        launch(op, stream, totals_kernel<C>, blocks_of_channels(packs), kBlock, packs, of.by.invstd,
               args.grad_weight.as<C>(), args.grad_bias.as<C>(), partial);
      }
      if (!args.grad_x) return;
      if (args.grad_addend) {  // has the gradient before the activation
        of.grad_y = args.grad_addend.as<T>(), of.y = nullptr, of.act = Activation<C>({});
      }
      launch(op, stream,
             of.y ? gradient_kernel<T, W, Own, true> : gradient_kernel<T, W, Own, false>, blocks,
             kBlock, packs, of, static_cast<double>(args.x.numel() / packs.channels),
             params.training ? partial : nullptr, args.grad_x.as<T>());
    };
    with_widths<T>(args.x, {&args.grad_y, &args.y, &args.grad_x, &args.grad_addend}, run);
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
