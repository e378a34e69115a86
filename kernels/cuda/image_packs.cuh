// Images as packs of 16 bytes, for kernels that sum over the pixels of each channel. A thread reads
// several packs before it uses the first: W neighbouring channels of a pixel (nhwc), or W pixels of
// a channel (nchw). Across threads the sums run in f64, in an order that the shapes and the
// alignment fix.
#pragma once

#include <algorithm>
#include <bit>
#include <initializer_list>

#include "weft/kernels/cuda/block_fold.cuh"
#include "weft/kernels/cuda/channel_parts.h"
#include "weft/kernels/view.h"

namespace weft::cuda {

// Blocks of a multiprocessor. A thread has 48 registers in kernels that sum, else 40. GPUs before
// 8.0 have room for 1024 threads.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
inline constexpr int kSumming = 4, kMapping = 4;
#else
inline constexpr int kSumming = 5, kMapping = 6;
#endif
// The most groups of a block: a warp then reads what lies side by side.
inline constexpr int kMostGroups = 32;
// A thread sums so many values before it adds them to what it has in f64.
inline constexpr int kPiece = 32;

/// The images as packs of neighbouring elements. The packs of a group have the same channels: as
/// many as they have elements (nhwc), or one (nchw). Pack p of group g begins at element
/// g group_step + (p / inner) outer_step + (p % inner) inner_step.
struct Packs {
  std::int64_t channels, groups, count;  // `count` packs in each group
  std::int64_t group_step, inner, outer_step, inner_step;
  // A block works on block_groups groups, with `lanes` threads each (powers of two), and on one of
  // the `chunks` of their packs. There are strips * chunks blocks.
  int block_groups = 1, lanes = kBlock;
  unsigned strips = 1, chunks = 1;
  unsigned blocks() const { return strips * chunks; }
  /// The first pack of a chunk.
  __device__ std::int64_t begin(unsigned chunk) const { return count * chunk / chunks; }
  /// The element at which pack p of group 0 begins.
  __device__ std::int64_t offset(std::int64_t p) const {
    return p / inner * outer_step + p % inner * inner_step;
  }

  // From a thread's pack to its next one: by `positions` of `inner` and by `step` elements, and by
  // `wrap` more where that leads beyond `inner`.
  std::int64_t positions = 0, step = 0, wrap = 0;
};

inline bool is_nhwc(const View& x) { return x.shape[1] > 1 && x.strides[1] == 1; }

/// Of a thread, at least.
inline constexpr int kUsualPacks = 16;

/// A thread has at least `least` packs, or the images are one chunk. The groups of a block are what
/// it reads side by side, a line of 128 bytes: with more, the last block of a strip would have more
/// to fold.
inline Packs packs_of(const View& x, std::int64_t width, int least = kUsualPacks) {
  const std::int64_t channels = x.shape[1], area = x.shape[2] * x.shape[3];
  const std::int64_t pixels = x.shape[0] * area;
  Packs p{channels, channels, pixels / width, area, area / width, channels * area, width};
  std::int64_t block_channels = 1;
  if (is_nhwc(x)) {
    p = {channels, channels / width, pixels, width, pixels, 0, channels};
    const auto line = 128 / (width * static_cast<std::int64_t>(size_of(x.dtype)));
    const std::int64_t most = std::min({p.groups, line, std::int64_t{kMostGroups}});
    while (p.block_groups < most) p.block_groups *= 2;
    p.lanes = kBlock / p.block_groups;
    block_channels = p.block_groups * width;
  }
  p.strips = static_cast<unsigned>((p.groups + p.block_groups - 1) / p.block_groups);
  // No more blocks than a large GPU runs at a time, unless a thread would have more than a thousand
  // elements of a channel; fewer if there are not counters enough.
  const std::int64_t most = std::max<std::int64_t>(
      {128 * kSumming / p.strips, pixels / (1024 * std::int64_t{p.lanes}), 1});
  p.chunks = static_cast<unsigned>(std::clamp<std::int64_t>(
      p.count / (least * p.lanes), 1,
      std::min(most, most_sharers(p.strips, static_cast<int>(block_channels)))));
  p.positions = p.lanes % p.inner;
  p.step = p.lanes / p.inner * p.outer_step + p.positions * p.inner_step;
  p.wrap = p.outer_step - p.inner * p.inner_step;
  return p;
}

/// The elements of 16 bytes, if pixels (nhwc) or planes consist of whole packs; else 1.
inline std::int64_t widest(const View& x) {
  const std::int64_t width = 16 / static_cast<std::int64_t>(size_of(x.dtype));
  return (is_nhwc(x) ? x.shape[1] : x.shape[2] * x.shape[3]) % width == 0 ? width : 1;
}

/// The bytes of Shares<A>::values for all channels, however aligned the data are.
template <class A>
std::size_t bytes_of_shares(const View& x, int least = kUsualPacks) {
  const unsigned chunks =
      std::max(packs_of(x, 1, least).chunks, packs_of(x, widest(x), least).chunks);
  return static_cast<std::size_t>(x.shape[1]) * chunks * sizeof(A);
}

/// Calls f.operator()<W, Own>(): W elements in a pack, Own channels of a thread. Packs of 16 bytes
/// need aligned data, too. All views are in one format.
template <class T, class F>
void with_widths(const View& x, std::initializer_list<const View*> others, const F& f) {
  const auto aligned = [](const View* v) {
    return reinterpret_cast<std::uintptr_t>(v->data) % 16 == 0;
  };
  constexpr int W = 16 / sizeof(T);
  if (widest(x) == 1 || !aligned(&x) || !std::ranges::all_of(others, aligned)) {
    f.template operator()<1, 1>();
  } else if (is_nhwc(x)) {
    f.template operator()<W, W>();
  } else {
    f.template operator()<W, 1>();
  }
}

// What does not stay in a register leaves room for more loads: reload() makes the code after it
// read memory again, and found_again() makes it compute what follows from x again.
__device__ inline void reload() { asm volatile("" ::: "memory"); }
__device__ inline unsigned found_again(unsigned x) {
  asm volatile("" : "+r"(x));
  return x;
}

/// What a thread works on: `left` packs. `origin` is the first, at `position` of its `inner` packs.
struct Part {
  Place place;
  unsigned strip, chunk;
  std::int64_t group, position, origin;
  int left;

  __device__ Part(const Packs& p, unsigned block)
      : place(p.lanes, p.block_groups, false),
        strip(block % p.strips),
        chunk(block / p.strips),
        group(std::int64_t{strip} * p.block_groups + place.group) {
    const std::int64_t begin = p.begin(chunk) + place.lane, end = p.begin(chunk + 1);
    position = begin % p.inner;
    origin = group * p.group_step + p.offset(begin);
    left = group < p.groups && begin < end ? static_cast<int>((end - begin - 1) / p.lanes + 1) : 0;
  }
  /// Calls f(offsets) for the next `most` packs or all, U at a time while there are as many.
  template <int U, bool wraps, class F>
  __device__ void for_packs(const Packs& p, int most, const F& f) {
    std::int64_t offset = origin;
    int here = min(most, left);
    left -= here;
    const auto next = [&] {
      const std::int64_t now = offset;
      offset += p.step;
      if (wraps) {
        position += p.positions;
        if (position >= p.inner) position -= p.inner, offset += p.wrap;
      }
      return now;
    };
    for (; here >= U; here -= U) {
      reload();
      std::int64_t at[U];
#pragma unroll
      for (int u = 0; u < U; ++u) at[u] = next();
      f(at);
    }
    for (; here > 0; --here) {
      reload();
      const std::int64_t at[1] = {next()};
      f(at);
    }
    origin = offset;
  }
};

/// As bf16(value).bits, but in one instruction where the GPU has it. That instruction turns every
/// NaN into the same NaN, and bf16() keeps its sign and upper bits.
__device__ inline std::uint32_t bf16_bits(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  std::uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
#else
  return bf16(value).bits;
#endif
}

/// The value as T would store it.
template <class T, class C>
__device__ C rounded(C value) {
  if constexpr (sizeof(T) == sizeof(C)) return value;
  return std::bit_cast<float>(bf16_bits(static_cast<float>(value)) << 16);
}

/// W neighbouring elements.
template <class T, int W>
struct alignas(sizeof(T) * W) Elements {
  T v[W];
  __device__ accumulate_t<T> get(int k) const { return static_cast<accumulate_t<T>>(v[k]); }
  __device__ void set(int k, accumulate_t<T> value) { v[k] = static_cast<T>(value); }
};
/// Two in each word: a bf16 of its own would take a register of 32 bits.
template <int W>
  requires(W > 1)
struct alignas(2 * W) Elements<bf16, W> {
  std::uint32_t words[W / 2];
  __device__ float get(int k) const {
    const std::uint32_t word = words[k / 2];
    return std::bit_cast<float>(k % 2 ? word & 0xffff0000u : word << 16);
  }
  __device__ void set(int k, float value) {
    const std::uint32_t bits = bf16_bits(value), word = words[k / 2];
    words[k / 2] = k % 2 ? (word & 0xffffu) | bits << 16 : (word & 0xffff0000u) | bits;
  }
};

/// U packs, read at once.
template <class T, int W, int U>
struct Loaded {
  Elements<T, W> packs[U];
  __device__ Loaded(const T* data, const std::int64_t (&at)[U]) {
#pragma unroll
    for (int u = 0; u < U; ++u) packs[u] = *reinterpret_cast<const Elements<T, W>*>(data + at[u]);
  }
  __device__ void store(T* data, const std::int64_t (&at)[U]) const {
#pragma unroll
    for (int u = 0; u < U; ++u) *reinterpret_cast<Elements<T, W>*>(data + at[u]) = packs[u];
  }
};

/// Adds what the threads of a block have of their channels. Thread i gets the sum of channel i
/// modulo the number of them. Overwrites the parts.
template <int Own>
__device__ double channel_sum(const Packs& packs, ChannelParts<Own>& parts) {
  const int thread = static_cast<int>(threadIdx.x), channels = packs.block_groups * Own;
  __syncthreads();
  double sum = 0;
#pragma unroll
  for (int k = 0; k < Own; ++k) sum += parts.to_sum(thread, k, packs.block_groups);
  __syncthreads();
  const int lanes = kBlock / channels;
  return fold_lanes<Sum>(sum, parts.values[0], Place(lanes, channels, false), lanes, channels);
}

/// Adds what the blocks of a strip have of its channels; thread i has the sum of channel i. The
/// last block calls store(channel, i, total); all its threads get true. All threads must call it.
template <class A, class F>
__device__ bool add_blocks(const Shares<A>& shares, unsigned strip, unsigned chunk, A sum,
                           const F& store) {
  const int i = static_cast<int>(threadIdx.x);
  const std::int64_t first = std::int64_t{strip} * shares.of_strip;
  return fold_blocks<Sum>(shares, strip, chunk, i < shares.of_strip ? i : -1, sum, A{},
                          [&](int k, A total) { store(first + k, k, total); });
}

}  // namespace weft::cuda
