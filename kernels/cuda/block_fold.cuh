// Sums the terms of a thread, and folds values across the threads of a block, in a fixed order.
#pragma once

#include <cstring>
#include <type_traits>

#include "weft/kernels/cuda/launch_size.h"

namespace weft::cuda {

inline constexpr int kWarp = 32;

/// The lane and group of a thread in a block with `groups` groups of `lanes` threads. With
/// lanes_inner, neighbouring threads belong to one group, else to neighbouring groups.
struct Place {
  int lane, group;
  bool lanes_inner;
  __device__ Place(int lanes, int groups, bool inner) : lanes_inner(inner) {
    const int t = static_cast<int>(threadIdx.x);
    lane = inner ? t % lanes : t / groups;
    group = inner ? t / lanes : t % groups;
  }
};

/// The value of the thread whose number in the warp differs from this thread's by `bits`.
template <class A>
__device__ A shuffle_xor(A value, int bits) {
  using Word = std::conditional_t<sizeof(A) % 8 == 0, unsigned long long, unsigned>;
  Word words[(sizeof(A) + sizeof(Word) - 1) / sizeof(Word)] = {};
  memcpy(words, &value, sizeof value);
  for (Word& word : words) word = __shfl_xor_sync(0xffffffff, word, bits);
  memcpy(&value, words, sizeof value);
  return value;
}

/// Folds the values of each `lanes` threads of a warp whose numbers differ by `apart`, as a tree.
/// All of them compute the same: the lower thread's value is always the first argument.
template <class Fold, class A>
__device__ A fold_warp(A value, int lanes, int apart = 1) {
  for (int half = lanes / 2 * apart; half >= apart; half /= 2) {
    const A other = shuffle_xor(value, half);
    const bool is_upper = (static_cast<int>(threadIdx.x) & half) != 0;
    value = is_upper ? Fold::fold(other, value) : Fold::fold(value, other);
  }
  return value;
}

/// Folds the values of the lanes of each group: those in one warp as a tree, then those of the
/// warps. Every thread gets the result of its group. `lanes` and `groups` are powers of two.
/// `shared` is shared memory for one value per thread. All threads of the block must call it, and
/// they are whole warps. Only where a group has lanes in several warps does this wait for the
/// block, twice.
template <class Fold, class A>
__device__ A fold_lanes(A value, A* shared, Place place, int lanes, int groups) {
  if (place.lanes_inner) {
    value = fold_warp<Fold>(value, lanes < kWarp ? lanes : kWarp);
    const int warps = lanes / kWarp;  // of a group
    if (warps <= 1) return value;
    if (place.lane % kWarp == 0) shared[place.group * warps + place.lane / kWarp] = value;
    __syncthreads();
    value = shared[place.group * warps + place.lane % warps];
    __syncthreads();  // before shared is written again
    return fold_warp<Fold>(value, warps);
  }
  const int in_warp = groups < kWarp ? kWarp / groups : 1;  // lanes of a group
  value = fold_warp<Fold>(value, in_warp, groups);
  const int part = place.lane / in_warp, parts = lanes / in_warp;
  if (parts == 1) return value;
  if (place.lane % in_warp == 0) shared[part * groups + place.group] = value;
  __syncthreads();
  value = shared[place.group];
  for (int p = 1; p < parts; ++p) value = Fold::fold(value, shared[p * groups + place.group]);
  __syncthreads();  // before shared is written again
  return value;
}

struct Sum {
  template <class A>
  __device__ static A identity() {
    return A(0);
  }
  template <class A>
  __device__ static A fold(A a, A b) {
    return a + b;
  }
};

/// Two sums that are added up together.
template <class A>
struct PairOf {
  A a, b;
  __device__ friend PairOf operator+(PairOf x, PairOf y) { return {x.a + y.a, x.b + y.b}; }
  template <class B>
  __device__ explicit operator PairOf<B>() const {
    return {static_cast<B>(a), static_cast<B>(b)};
  }
};
using Pair = PairOf<double>;

/// A sum and what its roundings have left out.
template <class A>
struct Compensated {
  A sum, rest;
  __device__ friend Compensated operator+(Compensated x, Compensated y) {
    const A sum = x.sum + y.sum, of_y = sum - x.sum;
    return {sum, x.rest + y.rest + ((x.sum - (sum - of_y)) + (y.sum - of_y))};
  }
  __device__ explicit operator double() const { return double{sum} + double{rest}; }
};

/// Rounding errors may make a variance negative: then 0. NaN stays NaN, where fmax would give 0.
template <class A>
__device__ A not_negative(A x) {
  return x < 0 ? A(0) : x;
}

// A thread adds up so many terms in f32 before it adds their sum to others in f64: a GPU for
// graphics does 64 operations of f32 in the time of one of f64.
inline constexpr int kRun = 32;

/// The sum of kRun terms at most, those of i = begin, begin + step, ... below end. A term is
/// term.operator()<A>(i), an A, PairOf<A> or Compensated<A>. In four chains, so that four loads are
/// under way at once and a term passes through no more than 10 additions.
template <class A, class F>
__device__ auto add_run(std::int64_t begin, std::int64_t end, std::int64_t step, const F& term) {
  decltype(term.template operator()<A>(begin)) chains[4] = {};
  std::int64_t i = begin;
  for (int k = 0; k < kRun && i < end; k += 4) {
#pragma unroll
    for (int u = 0; u < 4; ++u, i += step) {
      if (i < end) chains[u] = chains[u] + term.template operator()<A>(i);
    }
  }
  return (chains[0] + chains[1]) + (chains[2] + chains[3]);
}

/// The sum of all of them, in f64 from run to run.
template <class A, class F>
__device__ auto add_runs(std::int64_t begin, std::int64_t end, std::int64_t step, const F& term) {
  using OfRun = decltype(add_run<A>(begin, end, step, term));
  std::conditional_t<std::is_constructible_v<double, OfRun>, double, Pair> sum{};
  for (; begin < end; begin += kRun * step) {
    sum = sum + static_cast<decltype(sum)>(add_run<A>(begin, end, step, term));
  }
  return sum;
}

/// Whether this block is the last of the `blocks` that count themselves at `counter`: then all of
/// its threads see what the others wrote before. `counter` is 0 before the first comes and after
/// the last (block_counters). All threads of the block must call it.
__device__ inline bool comes_last(unsigned* counter, unsigned blocks) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicInc(counter, blocks - 1) == blocks - 1;
    __threadfence();
  }
  __syncthreads();
  return last;
}

/// What the blocks that share outputs have found.
template <class A>
struct Shares {
  A* values;             // [outputs][blocks]
  unsigned* done;        // block_counters
  std::int64_t outputs;  // of the grid
  int of_strip = 1;      // outputs of a strip, a power of two
  unsigned blocks = 1;   // of a strip, at most most_sharers()
};

/// Folds what the blocks of `strip` have found, of which this is number `block`. The thread with
/// i >= 0 has the block's value of the strip's output i. The last block to come calls store(i,
/// result), in one thread for each output; all its threads get true. The order is fixed by the
/// blocks' numbers. All threads of the block must call it.
template <class Fold, class A, class Store>
__device__ bool fold_blocks(const Shares<A>& of, unsigned strip, unsigned block, int i, A value,
                            A nothing, const Store& store) {
  __shared__ A shared[kBlock / kWarp];
  const std::int64_t first = std::int64_t{strip} * of.of_strip;
  const bool has = i >= 0 && first + i < of.outputs;
  if (of.blocks == 1) {
    if (has) store(i, value);
    return true;
  }
  if (has) of.values[(first + i) * of.blocks + block] = value;
  const Teams teams(of.blocks, of.of_strip);
  const Place place(teams.lanes, of.of_strip, true);
  const bool exists = first + place.group < of.outputs;
  A* const values = of.values + (first + place.group) * of.blocks;
  const auto fold = [&](A* from, unsigned count, unsigned step) {
    A sum = nothing;
    if (exists) {
#pragma unroll 4
      for (auto k = static_cast<unsigned>(place.lane); k < count; k += teams.lanes) {
        sum = Fold::fold(sum, from[k * step]);
      }
    }
    return fold_lanes<Fold>(sum, shared, place, teams.lanes, of.of_strip);
  };
  unsigned* const done = of.done + strip * teams.counters();
  const unsigned team = block / teams.size, begin = team * teams.size;
  const unsigned members = min(teams.size, of.blocks - begin);
  if (!comes_last(done + team, members)) return false;
  value = fold(values + begin, members, 1);
  if (teams.count > 1) {
    if (exists && place.lane == 0) values[begin] = value;
    if (!comes_last(done + teams.count, teams.count)) return false;
    value = fold(values, teams.count, teams.size);
  }
  if (exists && place.lane == 0) store(place.group, value);
  return true;
}

/// The block's sum of one value per thread, in every thread.
template <class A>
__device__ A block_sum(A value) {
  __shared__ A shared[kBlock / kWarp];
  return fold_lanes<Sum>(value, shared, Place(kBlock, 1, true), kBlock, 1);
}

}  // namespace weft::cuda
