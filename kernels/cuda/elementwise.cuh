// The device side of y[i] = f(x[i]...).
#pragma once

#include <algorithm>
#include <utility>

#include "weft/kernels/cuda/access.cuh"
#include "weft/kernels/cuda/elementwise.h"

namespace weft::cuda {

// The size in bytes of a thread's widest load, which contains several neighbouring elements.
inline constexpr int kPackBytes = 16;

template <int W, class Y, class F, class... P>
__device__ void apply_packs(const F& f, const Y& y, std::int64_t i, const P&... packs) {
  typename Y::template pack<W> out;
#pragma unroll
  for (int k = 0; k < W; ++k) out.set(k, f(packs.get(k)...));
  y.template store_pack<W>(i, out);
}

template <int W, class Y, class... X, class F, int N, std::size_t... I>
__device__ void map_packs(const MapArgs<N>& args, const F& f, std::index_sequence<I...>) {
  const Y y(args.data[0], args.dtype[0]);
  const std::uint32_t packs = args.n / W;
  const std::uint32_t first = blockIdx.x * kBlock + threadIdx.x;
  for (std::uint32_t i = first; i < packs; i += gridDim.x * kBlock) {
    const OffsetArray<N> at = args.offsets.at(i);
    apply_packs<W>(f, y, at.at[0],
                   X(args.data[1 + I], args.dtype[1 + I])
                       .template load_pack<W>(at.at[1 + I], args.repeats[1 + I])...);
  }
  const std::uint32_t tail = packs * W + first;  // fewer than W elements, all in the first block
  if (tail < args.n) {
    y.store(tail,
            f(X(args.data[1 + I], args.dtype[1 + I]).load(args.repeats[1 + I] ? 0 : tail)...));
  }
}

template <class Y, class... X, class F, int N, std::size_t... I>
__device__ void map_strided(const MapArgs<N>& args, const F& f, std::index_sequence<I...>) {
  const Y y(args.data[0], args.dtype[0]);
  for (std::uint32_t i = blockIdx.x * kBlock + threadIdx.x; i < args.n; i += gridDim.x * kBlock) {
    const OffsetArray<N> offset = args.offsets.at(i);
    y.store(offset.at[0], f(X(args.data[1 + I], args.dtype[1 + I]).load(offset.at[1 + I])...));
  }
}

// n is at most kMaxSmall and a grid has at most kMaxBlocks * kBlock = 2^22 threads, so the 32-bit
// loop variables cannot overflow. In-place operations are safe: a thread reads an element before it
// writes it.

template <int W, class F, class Y, class... X>
__global__ void __launch_bounds__(kBlock)
    packed_kernel(const __grid_constant__ MapArgs<1 + sizeof...(X)> args, const F f) {
  map_packs<W, Y, X...>(args, f, std::index_sequence_for<X...>{});
}

template <class F, class Y, class... X>
__global__ void __launch_bounds__(kBlock)
    strided_kernel(const __grid_constant__ MapArgs<1 + sizeof...(X)> args, const F f) {
  map_strided<Y, X...>(args, f, std::index_sequence_for<X...>{});
}

/// Queues y[i] = f(x[i]...). Y and X are the accesses (access.cuh) of the views and must fit their
/// dtypes.
template <class Y, class... X, class F, class... V>
void map(const Launch& from, const Stream& stream, const F& f, const View& y, const V&... x) {
  static_assert(sizeof...(X) == sizeof...(V));
  MapKernels kernels;
  kernels.strided = address_of(strided_kernel<F, Y, X...>);
  if constexpr (Y::bytes > 0 && ((X::bytes > 0) && ...)) {
    kernels.pack = kPackBytes / std::max({Y::bytes, X::bytes...});
    kernels.packed =
        address_of(packed_kernel<kPackBytes / std::max({Y::bytes, X::bytes...}), F, Y, X...>);
  }
  run_map<1 + sizeof...(X)>(from, stream, kernels, {&y, &x...}, &f);
}

}  // namespace weft::cuda
