#include "weft/kernels/cuda/reduce_plan.h"

#include <algorithm>

namespace weft::cuda {
namespace {

// With fewer lanes threads are idle if an output has few elements; with more there must be more
// outputs.
constexpr int kFewLanes = 32;
// From this length on a whole block computes one output.
constexpr std::int64_t kLongReduction = 1024;
// The least number of elements per lane for cutting the range: below it adding up
// the parts costs more than it gains.
constexpr std::int64_t kPerLane = 16;
// The number of blocks that fill the largest GPU (some 140 SMs x 8 blocks) about twice.
constexpr std::int64_t kFullGrid = 2048;
constexpr std::int64_t kMaxSplits = 1024;

}  // namespace

ReducePlan plan_reduce(const View& x, const View& y) {
  ReducePlan plan;
  for (int d = x.shape.size() - 1; d >= 0; --d) {
    if (x.shape[d] == 1) continue;
    if (y.shape[d] == x.shape[d]) {
      plan.kept.add_outer(x.shape[d], {x.strides[d], y.strides[d]});
    } else {
      plan.reduced.add_outer(x.shape[d], {x.strides[d]});
    }
  }
  plan.kept.sort();
  plan.kept.merge();
  plan.reduced.sort();
  plan.reduced.merge();
  plan.outputs = plan.kept.numel();
  plan.count = plan.reduced.numel();

  plan.lanes_inner = plan.kept.ndim == 0 || plan.reduced.ndim == 0 ||
                     plan.reduced.stride[0][0] <= plan.kept.stride[0][0];
  plan.lanes = plan.lanes_inner && plan.count >= kLongReduction ? kBlock : kFewLanes;
  if (!plan.lanes_inner) {
    // A warp reads 32 neighbouring outputs; the block's 8 warps share the reduced range.
    plan.lanes = kBlock / 32;
  }
  plan.groups = kBlock / plan.lanes;

  const std::int64_t blocks =
      std::max<std::int64_t>(plan.outputs / plan.groups + (plan.outputs % plan.groups != 0), 1);
  const std::int64_t useful = plan.count / (plan.lanes * kPerLane);
  const std::int64_t wanted = kFullGrid / blocks;
  const std::int64_t most = std::min(kMaxSplits, most_sharers(blocks, plan.of_strip()));
  plan.splits = static_cast<int>(std::clamp<std::int64_t>(std::min(useful, wanted), 1, most));
  return plan;
}

}  // namespace weft::cuda
