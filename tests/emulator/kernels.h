// Kernels with one fault each, and their launches.
#pragma once

#include <cuda_runtime_api.h>

namespace weft::testing {

inline constexpr int kThreads = 64;

/// y[i] = x[i] + 1; correct.
const void* increment();
/// y[i] = x[n - 1 - i] through shared memory, with or without the barrier in between.
const void* reversed(bool barrier);
/// y[i] = x[i ^ 1] through shared memory, with or without the warp's barrier in between.
const void* swapped(bool barrier);
/// y[i] = 100 x[i ^ 1] + x[i / 8 * 8 + 2], by shuffles; correct.
const void* shuffle();
/// A shuffle to which half of the threads do not come, and which the mask names or does not.
const void* divergent_shuffle(bool masked);
/// A barrier that half of the threads do not reach, or reach at another place.
const void* divergent(bool other_place);
/// y[at] = 1.
const void* poke();
/// y[0] = x[at].
const void* peek();
/// y[0] = on ? x[0] : 0.
struct Choice {
  const float* x;
  bool on;
};
const void* choose();
/// All threads of two blocks write their block's number to y[0].
const void* disputed();
/// Reads four floats at once at x + at.
const void* wide();

}  // namespace weft::testing
