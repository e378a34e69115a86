// ZeroRedundancyOptimizer: each rank has the optimiser's state of a part of the parameters, and
// updates that part (ZeRO, stage 1).
//
//   parallel::DistributedDataParallel ddp(model, group);
//   parallel::ZeroRedundancyOptimizer adam(optim::Adam(model.parameters(), {.lr = 1e-3}), group);
//   ...
//   adam.zero_grad();
//   nn::cross_entropy(ddp(x), label).backward();
//   adam.step();
//
// With parameters a to d and three ranks:
//
//                     rank 0          rank 1          rank 2
//   parameters        a b c d         a b c d         a b c d
//   mean gradients    a b c d         a b c d         a b c d      DDP: 2 (n-1)/n P bytes per rank
//   moments           a               b   d           c            1/n of what one process has
//   local step        a'              b'  d'          c'
//   broadcasts        a' ---------->  a'              a'
//                     b'  d' <------  b'  d' ------>  b'  d'       (n-1)/n P bytes per rank
//                     c' <--------------------------  c'
#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/core/base/error.h"
#include "weft/optim/optimizer.h"
#include "weft/parallel/zero_mirror.h"
#include "weft/parallel/zero_partition.h"
#include "weft/tensor/tree.h"

namespace weft::parallel {

/// An optimiser of type O in every respect: schedulers, checkpoints and functions that take an O
/// accept it. Make schedulers for this one, not for the optimiser from which it was made.
///
/// PyTorch's ZeroRedundancyOptimizer, with these differences:
///  - state_dict() collects the state itself, on all ranks: there is no consolidate_state_dict();
///  - parameters that are frozen when it is made are neither dealt out nor sent; a state that was
///    loaded for them stays on rank 0. Without a mirror: step() throws InvalidArgument, and ends
///    the group, if one requires a gradient later: make the optimiser again;
///  - there is no overlap_with_ddp, no parameters_as_bucket_view and no add_param_group().
///
/// Values and gradients must be the same on all ranks, as under DistributedDataParallel: a
/// parameter is updated with the gradient of its owner, and keeps its value if it has none there.
/// clip_grad_norm() then needs nothing of the other ranks. All ranks must call step() and
/// state_dict() in the same order. An optimiser that has a state keeps this rank's part of it.
/// Without a mirror: the first step compares some elements of each parameter, to 6 digits, and
/// throws InvalidArgument on every rank, and ends the group, if they differ, as for parts of a
/// model that parallelize or fully_shard has cut over this group; several ranks are Unsupported in
/// graph::capture.
template <std::derived_from<optim::Optimizer> O>
class ZeroRedundancyOptimizer : public O, public ZeroMirror {
 public:
  using StandsFor = O;  ///< the class that metrics.json names
  /// All ranks call it. Throws InvalidArgument on every rank, naming the first difference, when one
  /// has another type O, other groups, rates, shapes, dtypes, memory layouts or frozen parameters.
  ZeroRedundancyOptimizer(O optimizer, std::shared_ptr<comm::ProcessGroup> group)
      : O(std::move(optimizer)), ZeroMirror(weft::detail::type_name<O>(), {}) {
    partition_ = std::make_shared<ZeroPartition>(*this, type_name_, std::move(group));
    this->keep_only(partition_->kept());
  }
  /// `group` must outlive this.
  ZeroRedundancyOptimizer(O optimizer, comm::ProcessGroup& group)
      : ZeroRedundancyOptimizer(std::move(optimizer), {std::shared_ptr<void>(), &group}) {}
  /// For parallel::Elastic, which gives it one group after the other; before that it works as O.
  /// Throws InvalidArgument unless options.mirror is set.
  ZeroRedundancyOptimizer(O optimizer, const ZeroOptions& options)
      : O(std::move(optimizer)), ZeroMirror(weft::detail::type_name<O>(), options) {
    WEFT_CHECK(options.mirror, InvalidArgument, "zero",
               "without a group it is for parallel::Elastic, which needs {.mirror = true}");
    kept_.assign(this->parameters().size(), true);
  }

  /// Updates this rank's parameters. Without a mirror: when it returns, those of the other ranks
  /// have their new values, too.
  void step() override {
    if (mirrors()) return O::step();  // Elastic calls send()
    partition_->step([this] { O::step(); });
  }
  /// The optimiser's state as one process would have it, on every rank, with the tensors in host
  /// memory. All ranks must call it; if one does not, the others get Timeout, which says so.
  /// load_state_dict() takes such a state on any number of ranks, or in one process: each rank
  /// keeps its part.
  optim::NamedTensors state_dict() const override {
    return partition_ ? partition_->all_gather(O::state_dict()) : O::state_dict();
  }

  /// For each parameter, over all groups: the rank that updates it; -1: frozen. Empty before
  /// Elastic.
  std::vector<int> owners() const { return partition_ ? partition_->owners() : std::vector<int>(); }

 private:
  void keep_parts(const std::vector<bool>& kept) override { this->keep_only(kept); }
  optim::NamedTensors parts() const override { return O::state_dict(); }
};

}  // namespace weft::parallel
