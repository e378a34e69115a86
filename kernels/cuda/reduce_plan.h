// How a reduction is divided among threads and blocks. This depends only on shapes and strides, not
// on the GPU, so a sum has the same order everywhere. Host code, tested without a GPU.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "weft/kernels/cuda/index_math.h"
#include "weft/kernels/cuda/launch_size.h"
#include "weft/kernels/view.h"

namespace weft::cuda {

/// A thread block has `groups` groups of `lanes` threads (lanes * groups == kBlock). A group
/// computes one output: each of its threads folds every lanes-th element, then a tree folds the
/// results of the threads. If there are too few outputs to fill a GPU, the reduced range is cut
/// into `splits` parts; partial results go to the workspace, [outputs][splits], and the last block
/// of a strip of outputs folds them.
struct ReducePlan {
  IndexSpace<2> kept;     // the dimensions that are kept, of x and y
  IndexSpace<1> reduced;  // the reduced dimensions of x
  std::int64_t outputs = 1;
  std::int64_t count = 1;  // elements folded into one output
  int lanes = kBlock;
  int groups = 1;
  /// Whether neighbouring threads belong to one group or to neighbouring groups: chosen so that
  /// they read neighbouring addresses.
  bool lanes_inner = true;
  int splits = 1;

  /// The outputs that blocks share, as a power of two.
  int of_strip() const {
    return static_cast<int>(
        std::bit_ceil(static_cast<std::uint64_t>(std::min<std::int64_t>(groups, outputs))));
  }
  std::int64_t per_split() const { return count / splits + (count % splits != 0); }
  /// For partial results of 8 bytes, double or std::int64_t; some kernels need two of them.
  std::size_t workspace_bytes() const {
    return splits == 1 ? 0 : static_cast<std::size_t>(splits) * outputs * 8;
  }
};

/// y has as many dimensions as x. Those with different lengths are reduced.
ReducePlan plan_reduce(const View& x, const View& y);

}  // namespace weft::cuda
