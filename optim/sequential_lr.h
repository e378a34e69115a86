// SequentialLR: learning rate schedulers one after the other.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "weft/optim/lr_scheduler.h"

namespace weft::optim {

struct SequentialLROptions {
  std::vector<std::shared_ptr<LRScheduler>> schedulers{};  ///< required; all of one optimiser
  std::vector<std::int64_t> milestones{};                  ///< first step of the second one, ...
};

/// torch.optim.lr_scheduler.SequentialLR. Each scheduler begins at its milestone with its own step
/// 0, from the initial rates (Optimizer::initial_lr). Call step() on the SequentialLR only.
///   optim::SequentialLR scheduler(
///       sgd, {.schedulers = {std::make_shared<optim::LinearLR>(sgd),
///                            std::make_shared<optim::ExponentialLR>(
///                                sgd, optim::ExponentialLROptions{.gamma = 0.9})},
///             .milestones = {5}});
/// state_dict() also has the entries of the schedulers, with names such as
/// "schedulers.0.last_epoch".
class SequentialLR final : public LRScheduler {
 public:
  /// Throws InvalidArgument for no scheduler, for one that is null, is a ReduceLROnPlateau or
  /// belongs to another optimiser; and unless there is one milestone fewer than schedulers, all
  /// positive and in ascending order.
  SequentialLR(Optimizer& optimizer, SequentialLROptions options);

 private:
  void update() override;
  std::vector<Entry> state() override;

  SequentialLROptions options_;
};

}  // namespace weft::optim
