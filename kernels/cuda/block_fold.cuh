// Folds values across the threads of a block, in a fixed order.
#pragma once

#include "weft/kernels/cuda/launch_size.h"

namespace weft::cuda {

/// The lane and group of a thread in a block with `groups` groups of `lanes` threads. With
/// lanes_inner, neighbouring threads belong to one group, else to neighbouring groups.
struct Place {
  int lane, group;
  __device__ Place(int lanes, int groups, bool lanes_inner) {
    const int t = static_cast<int>(threadIdx.x);
    lane = lanes_inner ? t % lanes : t / groups;
    group = lanes_inner ? t / lanes : t % groups;
  }
};

/// Folds the values of the lanes of each group, as a tree. Every thread gets the result of its
/// group. `lanes` is a power of two. `shared` is shared memory for one value per thread. All
/// threads of the block must call it.
template <class Fold, class A>
__device__ A fold_lanes(A value, A* shared, Place place, int lanes, int groups) {
  shared[place.lane * groups + place.group] = value;
  __syncthreads();
  for (int half = lanes / 2; half > 0; half /= 2) {
    if (place.lane < half) {
      A& mine = shared[place.lane * groups + place.group];
      mine = Fold::fold(mine, shared[(place.lane + half) * groups + place.group]);
    }
    __syncthreads();
  }
  const A result = shared[place.group];
  __syncthreads();  // before shared is written again
  return result;
}

/// How many threads work on a row of n elements: a warp, or the whole block for a long row.
inline int lanes_of_row(std::int64_t n) { return n > 1024 ? kBlock : 32; }

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

/// Two sums that are folded together.
struct Pair {
  double a, b;
};
struct AddPairs {
  __device__ static Pair fold(Pair x, Pair y) { return {x.a + y.a, x.b + y.b}; }
};

/// Rounding errors may make a variance negative: then 0. NaN stays NaN, where fmax would give 0.
__device__ inline double not_negative(double x) { return x < 0 ? 0 : x; }

/// The block's sum of one value per thread, in every thread.
template <class A>
__device__ A block_sum(A value, A* shared) {
  return fold_lanes<Sum>(value, shared, Place(kBlock, 1, true), kBlock, 1);
}

}  // namespace weft::cuda
