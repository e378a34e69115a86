// How a reduction is spread over threads and blocks. Depends on shapes and strides alone, never on
// the GPU, so that the order of a sum is the same everywhere. Host only, testable without a GPU.
#pragma once

#include <cstdint>

#include "weft/kernels/cuda/index_math.h"
#include "weft/kernels/cuda/launch_size.h"
#include "weft/kernels/view.h"

namespace weft::cuda {

/// A block holds `groups` groups of `lanes` threads (lanes * groups == kBlock). A group owns one
/// output: its threads stride over the reduced elements, then fold their results as a tree. When
/// there are too few outputs to fill a GPU, the reduced range is cut into `splits` parts; partial
/// results go to the workspace, [splits][outputs], and a second pass folds them.
struct ReducePlan {
  IndexSpace<2> kept;     // x, y
  IndexSpace<1> reduced;  // x
  std::int64_t outputs = 1;
  std::int64_t count = 1;  // elements folded into one output
  int lanes = kBlock;
  int groups = 1;
  /// Neighbouring threads are lanes of one group (true) or of neighbouring groups (false),
  /// whichever makes them read neighbouring addresses.
  bool lanes_inner = true;
  int splits = 1;

  std::int64_t per_split() const { return count / splits + (count % splits != 0); }
  /// Partial results are 8 bytes each: double or std::int64_t.
  std::size_t workspace_bytes() const {
    return splits == 1 ? 0 : static_cast<std::size_t>(splits) * outputs * 8;
  }
};

/// y has x's number of dimensions; those in which the lengths differ are reduced.
ReducePlan plan_reduce(const View& x, const View& y);
/// The second pass: `splits` rows of `outputs` partial results into y.
ReducePlan plan_fold(const ReducePlan& first);

}  // namespace weft::cuda
