// What the threads of a block have of their channels, in shared memory, for channel_sum() of
// image_packs.cuh. No CUDA header, so that a test finds each thread's banks on the host.
#pragma once

#include "weft/core/base/dtype.h"
#include "weft/kernels/cuda/launch_size.h"

namespace weft::cuda {

/// A thread has a double of each of its Own channels, a power of two up to 8. `groups` neighbouring
/// threads, a power of two, have different channels: channel c is number c % Own of group c / Own.
template <int Own>
struct ChannelParts {
  double values[Own][kBlock];

  WEFT_HD double& of(int thread, int k) { return values[k][thread ^ (k * kSpread)]; }
  /// Part k of the Own ones that `thread` sums, of channel `thread` modulo the number of channels.
  WEFT_HD double& to_sum(int thread, int k, int groups) {
    const int channels = groups * Own, c = thread % channels;
    return of((thread / channels * Own + k) * groups + c / Own, c % Own);
  }

 private:
  // Neighbouring threads sum neighbouring channels, which are in different rows. In plain rows
  // these would lie in the same banks. A row's number, repeated in all bits that choose a bank,
  // moves them apart for any number of groups.
  static constexpr int kSpread = Own > 1 ? 63 / (Own - 1) : 0;
};

}  // namespace weft::cuda
