// Which rank updates which parameters, for ZeroRedundancyOptimizer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/optim/optimizer.h"
#include "weft/parallel/coalesced.h"

namespace weft::parallel {

/// Deals out the parameters of each group of an optimiser: the largest first, each to the rank that
/// has the fewest bytes so far, the lowest such rank. The ranks' sums are carried over to the next
/// group. Returns the owner of each parameter, in order. As PyTorch's
/// ZeroRedundancyOptimizer._partition_parameters, which counts numbers in place of bytes.
std::vector<std::vector<int>> deal_out(std::span<const std::vector<std::int64_t>> bytes_of_groups,
                                       int ranks);

/// Which rank updates which parameters, and how the others get them. For ZeroRedundancyOptimizer.
class ZeroPartition {
 public:
  /// type_name: the optimiser's, for ranks that compare; same_rates: they compare these, too.
  ZeroPartition(const optim::Optimizer& optimizer, const std::string& type_name,
                std::shared_ptr<comm::ProcessGroup> group, bool same_rates = true);

  /// For each parameter, over all groups: whether the rank has its state, and so updates it.
  std::vector<bool> kept(int rank) const;
  std::vector<bool> kept() const { return kept(group_->rank()); }
  /// For each parameter, over all groups: the rank that updates it; -1 for a frozen one.
  const std::vector<int>& owners() const { return owners_; }

  /// Calls `update`, then sends every rank's parameters to the others. If `update` throws, this
  /// aborts the group, since the other ranks would wait.
  void step(const std::function<void()>& update);
  /// The second half of step(): sends the parameters.
  void broadcast();
  /// The whole state, in host memory; this rank contributes its own part of `own`.
  optim::NamedTensors all_gather(const optim::NamedTensors& own) const;
  bool states_failed() const;  ///< the group in which it does

 private:
  void check_frozen() const;
  void check_equal();
  void make_messages();

  const std::shared_ptr<comm::ProcessGroup> group_;
  // A group for states alone: the operations of a rank that takes no part cannot mix with them.
  const std::shared_ptr<comm::ProcessGroup> states_;
  const std::vector<Tensor> parameters_;
  std::vector<int> owners_;
  bool compared_ = false;
  std::vector<std::pair<int, Tensor>> large_;     // with their owners
  std::vector<std::pair<int, Coalesced>> small_;  // of one owner and device
};

}  // namespace weft::parallel
