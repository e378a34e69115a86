// Rows that a warp or a block works on, and the sums of softmax over them.
#pragma once

#include <cmath>

#include "weft/core/base/dtype.h"
#include "weft/kernels/cuda/block_fold.cuh"
#include "weft/kernels/functors.h"

namespace weft::cuda {

/// `count` rows of n elements. A block has `groups` rows at a time, with `lanes` threads each: a
/// warp, or the whole block for a long row.
struct Rows {
  std::int64_t count, n;
  int lanes, groups;
  Rows(std::int64_t rows, std::int64_t length)
      : count(rows), n(length), lanes(length > 1024 ? kBlock : kWarp), groups(kBlock / lanes) {}

  unsigned blocks() const { return grid_blocks(count, groups); }
  /// Calls f(row, exists, place) the same number of times in all threads of a block, which folds
  /// need.
  template <class F>
  __device__ void for_each(const F& f) const {
    const Place place(lanes, groups, true);
    for (std::int64_t first = std::int64_t{blockIdx.x} * groups; first < count;
         first += std::int64_t{gridDim.x} * groups) {
      f(first + place.group, first + place.group < count, place);
    }
  }
  /// Calls f(i) for a lane's elements of a row. Where f only reads, four loads are under way at
  /// once.
  template <class F>
  __device__ void for_lane(Place place, bool exists, const F& f) const {
    if (!exists) return;
#pragma unroll 4
    for (std::int64_t i = place.lane; i < n; i += lanes) f(i);
  }
  /// The sum of term(i) over a row, in the type of its terms (add_run), in each of its lanes. Only
  /// a lane with several runs uses f64. All threads of a row must call it.
  template <class A, class F>
  __device__ auto sum(Place place, bool exists, const F& term) const {
    const std::int64_t end = exists ? n : 0;
    using OfRun = decltype(add_run<A>(place.lane, end, lanes, term));
    const OfRun of_lane = n <= std::int64_t{lanes} * kRun
                              ? add_run<A>(place.lane, end, lanes, term)
                              : static_cast<OfRun>(add_runs<A>(place.lane, end, lanes, term));
    return fold<Sum>(of_lane, place);
  }
  /// The fold of what the lanes of a row have, in each of them. All threads of a row must call it.
  template <class Fold, class A>
  __device__ A fold(A value, Place place) const {
    __shared__ A shared[kBlock / kWarp];
    return fold_lanes<Fold>(value, shared, place, lanes, groups);
  }
};

struct Largest {
  template <class A>
  __device__ static A fold(A a, A b) {
    return functor::Maximum{}.fwd(a, b);  // a NaN wins
  }
};

/// The largest element of a row, and the sum of exp(x - largest).
template <class C>
struct Exponentials {
  C most, sum;
  /// log_softmax = x - shift()
  __device__ C shift() const { return most + std::log(sum); }
};

/// All threads must call it; the result means nothing in those without a row.
template <class T>
__device__ Exponentials<accumulate_t<T>> exponentials(const Rows& rows, const T* x, bool exists,
                                                      Place place) {
  using C = accumulate_t<T>;
  C most = -static_cast<C>(INFINITY);
  rows.for_lane(place, exists,
                [&](std::int64_t c) { most = Largest::fold(most, static_cast<C>(x[c])); });
  most = rows.fold<Largest>(most, place);
  const C sum = rows.sum<C>(place, exists, [&]<class A>(std::int64_t c) {
    return std::exp(static_cast<A>(x[c]) - most);
  });
  return {most, sum};
}

}  // namespace weft::cuda
