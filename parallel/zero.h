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
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/optim/optimizer.h"
#include "weft/parallel/coalesced.h"

namespace weft::parallel {

/// Deals out the parameters of each group of an optimiser: the largest first, each to the rank that
/// has the fewest bytes so far, the lowest such rank. What the ranks have is carried over to the
/// next group. Returns the owner of each parameter, in order. As PyTorch's
/// ZeroRedundancyOptimizer._partition_parameters, which counts numbers in place of bytes.
std::vector<std::vector<int>> deal_out(std::span<const std::vector<std::int64_t>> bytes_of_groups,
                                       int ranks);

/// Which rank updates which parameters, and how the others get them. For ZeroRedundancyOptimizer.
class ZeroPartition {
 public:
  ZeroPartition(const optim::Optimizer& optimizer, std::shared_ptr<comm::ProcessGroup> group);

  /// By a parameter's number over all groups: whether this rank updates it.
  std::vector<bool> kept() const;
  /// By that number, too: the rank that updates it; -1 for a frozen one, which none does.
  const std::vector<int>& owners() const { return owners_; }

  /// Calls `update`, then sends every rank's parameters to the others. An `update` that throws
  /// aborts the group: else the other ranks would wait.
  void step(const std::function<void()>& update);
  /// The whole state, in host memory; `own` is what this rank has.
  optim::NamedTensors all_gather(const optim::NamedTensors& own) const;

 private:
  void check_frozen() const;
  void check_equal();
  void make_messages();
  void broadcast();

  const std::shared_ptr<comm::ProcessGroup> group_;
  // For states: a rank that goes on without them sends none of its operations into their middle.
  const std::shared_ptr<comm::ProcessGroup> states_;
  const std::vector<Tensor> parameters_;
  std::vector<int> owners_;
  bool compared_ = false;
  std::vector<std::pair<int, Tensor>> large_;     // with their owners
  std::vector<std::pair<int, Coalesced>> small_;  // of one owner and device
};

/// An optimiser of type O in every respect: schedulers, checkpoints and functions that take an O
/// accept it. Make schedulers for this one, not for the optimiser from which it was made.
///
/// PyTorch's ZeroRedundancyOptimizer, with these differences:
///  - state_dict() collects the state by itself, on all ranks: there is no
///  consolidate_state_dict();
///  - parameters that are frozen when it is made are neither dealt out nor sent; a state that was
///    loaded for them stays on rank 0. step() throws InvalidArgument, and ends the group, if one
///    requires a gradient later: make the optimiser again;
///  - there is no overlap_with_ddp, no parameters_as_bucket_view and no add_param_group().
///
/// Values and gradients must be the same on all ranks, as under DistributedDataParallel: a
/// parameter is updated with the gradient of its owner, and keeps its value if it has none there.
/// The first step compares some elements of each parameter, to 6 digits, and throws InvalidArgument
/// on every rank, and ends the group, if they differ: as for parts of a model that parallelize or
/// fully_shard has cut over this group. clip_grad_norm() then needs nothing of the other ranks. All
/// ranks must call step() and state_dict() in the same order. An optimiser that has a state keeps
/// this rank's part of it. Several ranks: Unsupported in graph::capture.
template <std::derived_from<optim::Optimizer> O>
class ZeroRedundancyOptimizer : public O {
 public:
  using StandsFor = O;  ///< the class that metrics.json names
  /// All ranks call it. Throws InvalidArgument on every rank, naming the first difference, when one
  /// has other groups, rates, shapes, dtypes, memory layouts or frozen parameters.
  ZeroRedundancyOptimizer(O optimizer, std::shared_ptr<comm::ProcessGroup> group)
      : O(std::move(optimizer)),
        partition_(std::make_unique<ZeroPartition>(*this, std::move(group))) {
    this->keep_only(partition_->kept());
  }
  /// `group` must outlive this.
  ZeroRedundancyOptimizer(O optimizer, comm::ProcessGroup& group)
      : ZeroRedundancyOptimizer(std::move(optimizer), std::shared_ptr<comm::ProcessGroup>(
                                                          std::shared_ptr<void>(), &group)) {}

  /// Updates this rank's parameters; when it returns, those of the other ranks have their new
  /// values, too.
  void step() override {
    partition_->step([this] { O::step(); });
  }
  /// The state that the optimiser has in one process, on every rank, with the tensors in host
  /// memory. All ranks must call it; if one does not, the others get Timeout, which says so.
  /// load_state_dict() takes it on any number of ranks, or in one process: each rank keeps its
  /// part.
  optim::NamedTensors state_dict() const override {
    return partition_->all_gather(O::state_dict());
  }

  /// By a parameter's number over all groups: the rank that updates it; -1: frozen.
  const std::vector<int>& owners() const { return partition_->owners(); }

 private:
  std::unique_ptr<ZeroPartition> partition_;
};

}  // namespace weft::parallel
