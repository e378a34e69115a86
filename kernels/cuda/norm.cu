// Batch norm. In training, forward passes over the memory of the images twice: moments_kernel reads
// x; normalize_kernel reads x and the addend and writes y. So does backward: products_kernel reads
// grad_y, x and, for an activation after an addition, y, and writes grad_addend; gradient_kernel
// reads grad_addend, or the same again, and x, and writes grad_x. The last block of the first
// pass adds up what the blocks have found.
//
// A thread sums in the type of computing, image_packs.cuh the rest.
#include <algorithm>

#include "weft/kernels/cuda/access.cuh"
#include "weft/kernels/cuda/families.h"
#include "weft/kernels/cuda/handles.h"
#include "weft/kernels/cuda/image_packs.cuh"
#include "weft/kernels/cuda/launch.h"
#include "weft/kernels/functors.h"

namespace weft::cuda {
namespace {

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

/// What the blocks have found of each channel.
template <int Own>
Shares<Pair> shares_of(const Stream& stream, const Packs& packs, void* workspace) {
  return {static_cast<Pair*>(workspace), block_counters(stream), packs.channels,
          packs.block_groups * Own, packs.chunks};
}

/// add_blocks(), for which the block's strip and chunk are computed again: so they take no
/// registers until here.
template <class F>
__device__ bool add_up(const Packs& packs, const Shares<Pair>& shares, Pair sum, const F& store) {
  const Part part(packs, found_again(blockIdx.x));
  return add_blocks(shares, part.strip, part.chunk, sum, store);
}

// --- Forward -------------------------------------------------------------------------------------

/// What forward makes of the statistics of each channel, and with what.
template <class C>
struct Statistics {
  BatchNormParams params;
  double n;
  // Updated in training; each may be null, but num_batches not if params.cumulative.
  C* running_mean;
  C* running_var;
  std::int64_t* num_batches;
  // Always written.
  C* mean;
  C* invstd;

  __device__ void set(std::int64_t c, double center, double var) const {
    mean[c] = static_cast<C>(center);
    invstd[c] = static_cast<C>(1 / sqrt(var + params.eps));
  }
  /// sum: of x - shift and its square.
  __device__ void set_batch(std::int64_t c, C shift, Pair sum) const {
    const double squares = not_negative(sum.b - sum.a * sum.a / n);
    const double center = static_cast<double>(shift) + sum.a / n;
    const double momentum =
        params.cumulative ? 1 / static_cast<double>(*num_batches + 1) : params.momentum;
    const auto follow = [&](C* running, double batch) {
      if (running) running[c] = static_cast<C>((1 - momentum) * running[c] + momentum * batch);
    };
    follow(running_mean, center);
    follow(running_var, squares / (n - 1));
    set(c, center, squares / n);
  }
};

// Numbers near 1e20 have squares beyond f32.
constexpr double kSmall = 0x1p-140;

/// For each channel the sums of x - shift and of its square, where shift is the channel's first
/// element, and the statistics. In each piece a thread takes off a number near its mean so far
/// instead, at first its own first element: an unusual one costs digits in that piece alone. A
/// thread that finds squares too large sums those channels a second time, scaled.
template <class T, int W, int Own>
__global__ void __launch_bounds__(kBlock, kSumming)
    moments_kernel(const __grid_constant__ Packs packs, const T* x,
                   const __grid_constant__ Statistics<accumulate_t<T>> to,
                   const __grid_constant__ Shares<Pair> shares) {
  using C = accumulate_t<T>;
  __shared__ ChannelParts<Own> sums, squares;
  __shared__ C common[1][Own][kMostGroups];
  const int thread = static_cast<int>(threadIdx.x);
  Part part(packs, blockIdx.x);
  set_constants(common, packs, part, [&](std::int64_t c, C* first) {
    first[0] = static_cast<C>(x[c / Own * packs.group_step + c % Own]);
  });
  C scale = 1;
  for (unsigned channels = (1u << Own) - 1; channels != 0;) {
    const std::int64_t begin[1] = {part.left > 0 ? part.origin : 0};
    Elements<T, W> shift = Loaded<T, W, 1>(x, begin).packs[0];
#pragma unroll
    for (int k = 0; k < Own; ++k) {
      if (channels >> k & 1) sums.of(thread, k) = squares.of(thread, k) = 0;
    }
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
            b[k % Own] += d * scale * d;
          }
        }
      });
      const double n = here * (W / Own), whole = scale < 1 ? 1 / kSmall : 1;
      seen += static_cast<C>(n);
      const C share = C(1) / seen;
#pragma unroll
      for (int k = 0; k < Own; ++k) {
        if (!(channels >> k & 1)) continue;
        const C origin = common[0][k][part.place.group];
        const double d = static_cast<double>(shift.get(k)) - static_cast<double>(origin);
        const double sum = a[k];
        squares.of(thread, k) += b[k] * whole + d * (2 * sum + n * d);
        sums.of(thread, k) += sum + n * d;
        shift.set(k, origin + static_cast<C>(sums.of(thread, k)) * share);
      }
    }
    channels = 0;
    if (scale < 1) break;
#pragma unroll
    for (int k = 0; k < Own; ++k) channels |= isfinite(squares.of(thread, k)) ? 0u : 1u << k;
    scale = static_cast<C>(kSmall);
    if (channels) part = Part(packs, found_again(blockIdx.x));
  }
  Pair found;
  found.a = channel_sum(packs, sums);
  found.b = channel_sum(packs, squares);
  const bool last = add_up(packs, shares, found, [&](std::int64_t c, int i, Pair sum) {
    to.set_batch(c, common[0][i % Own][i / Own], sum);
  });
  // All channels have read the number before it changes.
  if (last && to.num_batches && comes_last(shares.done + kBlockCounters - 1, packs.strips) &&
      thread == 0)
    ++*to.num_batches;
}

/// The statistics for evaluation.
template <class C>
__global__ void __launch_bounds__(kBlock)
    running_kernel(std::int64_t channels, const Statistics<C> to) {
  for_each_of_grid(channels, [&](std::int64_t c) {
    to.set(c, value_or(to.running_mean, c, 0.0), value_or(to.running_var, c, 1.0));
  });
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
  /// The mean, scale and offset of channel c.
  __device__ void operator()(std::int64_t c, C* to) const {
    to[0] = mean[c];
    to[1] = invstd[c] * value_or(weight, c, C(1));
    to[2] = value_or(bias, c, C(0));
  }
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
  set_constants(constants, packs, part, by);
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
  for_floating(op, stream, args.x.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    const std::int64_t channels = args.x.shape[1];
    const Statistics<C> statistics{params,
                                   static_cast<double>(args.x.numel() / channels),
                                   args.running_mean.as<C>(),
                                   args.running_var.as<C>(),
                                   args.num_batches.as<std::int64_t>(),
                                   args.mean.as<C>(),
                                   args.invstd.as<C>()};
    const Affine<C> by{statistics.mean, statistics.invstd, args.weight.as<C>(), args.bias.as<C>()};
    with_widths<T>(args.x, {&args.y, &args.addend}, [&]<int W, int Own>() {
      const Packs packs = packs_of(args.x, W);
      if (params.training) {
        launch(op, stream, moments_kernel<T, W, Own>, packs.blocks(), kBlock, packs, args.x.as<T>(),
               statistics, shares_of<Own>(stream, packs, workspace));
      } else {
        launch(op, stream, running_kernel<C>, grid_blocks(channels), kBlock, channels, statistics);
      }
      const auto normalize =
          args.addend ? normalize_kernel<T, W, Own, true> : normalize_kernel<T, W, Own, false>;
      launch(op, stream, normalize, packs.blocks(), kBlock, packs, args.x.as<T>(),
             args.addend.as<T>(), args.y.as<T>(), by, Activation<C>(params));
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
  /// The packs of grad_y after f(k, grad, d, constant) for each element: of the thread's channel k
  /// its gradient before the activation, x less the mean, and the constants, which begin with mean,
  /// scale and offset.
  template <int W, int Own, bool has_y, int U, int N, class F>
  __device__ Loaded<T, W, U> mapped(const std::int64_t (&at)[U],
                                    const C (&constants)[N][Own][kMostGroups], int group,
                                    const F& f) const {
    std::uint32_t passes = 0;
    if (has_y) passes = find_passes<W>(at);
    Loaded<T, W, U> g(grad_y, at);
    const Loaded<T, W, U> in(x, at);
#pragma unroll
    for (int k = 0; k < W; ++k) {
      const auto constant = [&](int i) { return constants[i][k % Own][group]; };
#pragma unroll
      for (int u = 0; u < U; ++u) {
        const C value = in.packs[u].get(k);
        const bool pass =
            has_y ? passes >> (u * W + k) & 1
                  : act.passes(normalised<T>(value, constant(0), constant(1), constant(2)));
        const C grad = before(g.packs[u].get(k), pass);
        g.packs[u].set(k, f(k % Own, grad, value - constant(0), constant));
      }
    }
    return g;
  }
};

/// For each channel the sums of g and g (x - mean), where g is the gradient before the activation,
/// which is also that of the addend. The totals are left in each channel's first share.
template <class T, int W, int Own, bool has_y>
__global__ void __launch_bounds__(kBlock, kSumming)
    products_kernel(const __grid_constant__ Packs packs, const Gradient<T> of, T* grad_addend,
                    accumulate_t<T>* grad_weight, accumulate_t<T>* grad_bias,
                    const __grid_constant__ Shares<Pair> shares) {
  using C = accumulate_t<T>;
  __shared__ ChannelParts<Own> parts;
  __shared__ C constants[3][Own][kMostGroups];
  const int thread = static_cast<int>(threadIdx.x);
  Part part(packs, blockIdx.x);
  set_constants(constants, packs, part, of.by);
  C sum[Own] = {}, product[Own] = {};
  const auto add = [&](int k, C grad, C d, const auto&) {
    sum[k] += grad;
    product[k] += grad * d;
    return grad;
  };
  part.for_packs<2, Own == 1>(packs, part.left, [&]<int U>(const std::int64_t(&at)[U]) {
    const auto g = of.template mapped<W, Own, has_y>(at, constants, part.place.group, add);
    if (has_y && grad_addend) g.store(grad_addend, at);
  });
  Pair of_block;
#pragma unroll
  for (int k = 0; k < Own; ++k) parts.of(thread, k) = sum[k];
  of_block.a = channel_sum(packs, parts);
#pragma unroll
  for (int k = 0; k < Own; ++k) parts.of(thread, k) = product[k];
  of_block.b = channel_sum(packs, parts);
  add_up(packs, shares, of_block, [&](std::int64_t c, int, Pair total) {
    shares.values[c * packs.chunks] = total;
    if (grad_bias) grad_bias[c] = static_cast<C>(total.a);
    if (grad_weight) grad_weight[c] = static_cast<C>(total.b * double{of.by.invstd[c]});
  });
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
    of.by(c, to);
    const Pair sum = totals ? totals[c * packs.chunks] : Pair{};
    to[3] = static_cast<C>(sum.a / n);
    const double invstd = of.by.invstd[c];  // its square may be too small for f32
    to[4] = static_cast<C>(invstd * invstd * (sum.b / n));
  });
  const auto center = [&](int, C grad, C d, const auto& constant) {
    if (totals) grad -= constant(3) + d * constant(4);
    return constant(1) * grad;
  };
  part.for_packs<2, Own == 1>(packs, part.left, [&]<int U>(const std::int64_t(&at)[U]) {
    const auto g = of.template mapped<W, Own, has_y>(at, constants, part.place.group, center);
    g.store(grad_x, at);
  });
}

void batch_norm_backward(const Stream& stream, const BatchNormParams& params,
                         const BatchNormGradArgs& args, void* workspace) {
  const char* const op = "batch_norm_backward";
  for_floating(op, stream, args.x.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    Gradient<T> of{args.grad_y.as<T>(),
                   args.x.as<T>(),
                   args.y.as<T>(),
                   {args.mean.as<C>(), args.invstd.as<C>(), args.weight.as<C>(), args.bias.as<C>()},
                   Activation<C>(params)};
    const auto run = [&]<int W, int Own>() {
      const Packs packs = packs_of(args.x, W);
      if (params.training || args.grad_weight || args.grad_bias || args.grad_addend) {
        launch(
            op, stream, of.y ? products_kernel<T, W, Own, true> : products_kernel<T, W, Own, false>,
            packs.blocks(), kBlock, packs, of, args.grad_addend.as<T>(), args.grad_weight.as<C>(),
            args.grad_bias.as<C>(), shares_of<Own>(stream, packs, workspace));
      }
      if (!args.grad_x) return;
      if (args.grad_addend) {  // has the gradient before the activation
        of.grad_y = args.grad_addend.as<T>(), of.y = nullptr, of.act = Activation<C>({});
      }
      launch(
          op, stream, of.y ? gradient_kernel<T, W, Own, true> : gradient_kernel<T, W, Own, false>,
          packs.blocks(), kBlock, packs, of, static_cast<double>(args.x.numel() / packs.channels),
          params.training ? static_cast<const Pair*>(workspace) : nullptr, args.grad_x.as<T>());
    };
    with_widths<T>(args.x, {&args.grad_y, &args.y, &args.grad_x, &args.grad_addend}, run);
  });
}

}  // namespace

NormKernels norm_kernels() {
  return {.batch_norm_workspace_bytes = [](const View& x) { return bytes_of_shares<Pair>(x); },
          .batch_norm = batch_norm,
          .batch_norm_backward = batch_norm_backward,
          .group_norm = group_norm,
          .group_norm_backward_workspace_bytes = group_norm_backward_workspace_bytes,
          .group_norm_backward = group_norm_backward};
}

}  // namespace weft::cuda
