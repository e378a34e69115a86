// DistributedDataParallel for ranks with different numbers of batches.
#pragma once

#include <functional>

#include "weft/parallel/reducer.h"

namespace weft::parallel {

/// PyTorch's options, and `step`.
struct JoinOptions {
  /// true: divide gradients by the number of ranks, also when some have no batch left; false: by
  /// the number of ranks that have one, so that the last batches have the same weight as the
  /// others. With a comm_hook gradients are then multiplied by the ratio of the two numbers before
  /// it gets them, so that a hook that divides by the number of ranks is right.
  bool divide_by_initial_world_size = true;
  /// Called on a rank without batches after each backward of the others that averages, when it has
  /// their mean gradients. Set it to optimizer.step() to keep the state of its optimiser equal to
  /// theirs; their steps must then have one such backward each, others under no_sync().
  std::function<void()> step = {};
};

/// DistributedDataParallel::join(). A rank that is done takes part in the others' reductions.
void join(Reducer& reducer, const std::function<void()>& body, const JoinOptions& options);

}  // namespace weft::parallel
