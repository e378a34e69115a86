// SequentialLR: learning rate schedulers one after the other.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "weft/optim/lr_scheduler.h"

namespace weft::optim {

struct SequentialLROptions {
  std::vector<std::shared_ptr<LRScheduler>> schedulers;  ///< to be given: of the same optimiser
  std::vector<std::int64_t> milestones;                  ///< where the second one begins, ...
};

/// torch.optim.lr_scheduler.SequentialLR. Each scheduler begins at its milestone with its step 0,
/// from the rates the optimiser had before any scheduler. Step this one alone.
///   optim::SequentialLR scheduler(
///       sgd, {.schedulers = {std::make_shared<optim::LinearLR>(sgd),
///                            std::make_shared<optim::ExponentialLR>(
///                                sgd, optim::ExponentialLROptions{.gamma = 0.9})},
///             .milestones = {5}});
/// state_dict() also has what the schedulers' have, as "schedulers.0.last_epoch".
class SequentialLR final : public LRScheduler {
 public:
  /// Throws InvalidArgument for no scheduler, one that is null, a ReduceLROnPlateau or of another
  /// optimiser, and milestones that are not one fewer, positive and in ascending order.
  SequentialLR(Optimizer& optimizer, SequentialLROptions options);

 private:
  void update() override;
  std::vector<Entry> state() override;

  SequentialLROptions options_;
};

}  // namespace weft::optim
