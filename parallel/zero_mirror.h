// Keeps the state of a ZeroRedundancyOptimizer when ranks come and go: each part is on two ranks.
//
// With parameters a to d: after a vote of parallel::Elastic all ranks have the same values and mean
// gradients. So a second rank, the mirror, can make an owner's updates as well, and its copy of the
// state has the same bits without a message. On one node that is the next rank. Rank 1 fails, and
// ranks 0 and 2 deal out the parts anew:
//
//                     rank 0          rank 1          rank 2
//   owns              a               b   d           c
//   mirrors           c               a               b   d
//   in the new group  a   c  (b d)                    b   d  (a c)    to rank 2: a; to rank 0: b, d
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/optim/optimizer.h"

namespace weft::parallel {

class ZeroPartition;

struct ZeroOptions {
  /// Whether another rank, the mirror, has a copy of each rank's part of the state, so that nothing
  /// is lost with a rank. The mirror is LOCAL_WORLD_SIZE places after the owner, in a circle, so
  /// that nothing is lost with a node either; it is the next rank if there are no more ranks than
  /// that. This costs the memory and the update of a second part.
  bool mirror = false;
};

/// A ZeroRedundancyOptimizer of any type, for parallel::Elastic.
class ZeroMirror {
 public:
  bool mirrors() const { return mirrors_; }
  /// For a rank that has come back: it has no part of the state.
  void forget();
  /// The part of the state that every rank has: the groups' rates.
  optim::NamedTensors rates() const;
  /// All ranks of a new group call it, after the same updates; `self` is this optimiser. All ranks
  /// get the parameters' values from ranks that have updated them, and each gets its parts of the
  /// state. If it fails, no rank has lost anything. Returns false, on all ranks, if no rank has
  /// some part.
  bool deal(optim::Optimizer& self, const std::shared_ptr<comm::ProcessGroup>& group);
  /// Sends the parameters that step() has updated to the other ranks of the last group. If that
  /// fails, the next deal() does it.
  void send();
  /// Whether the group that gathers states has failed.
  bool failed() const;

 protected:
  ZeroMirror(std::string type_name, const ZeroOptions& options)
      : type_name_(std::move(type_name)), mirrors_(options.mirror) {}
  ~ZeroMirror() = default;

  /// Optimizer::keep_only().
  virtual void keep_parts(const std::vector<bool>& kept) = 0;
  /// The state that this rank has.
  virtual optim::NamedTensors parts() const = 0;

  const std::string type_name_;
  std::shared_ptr<ZeroPartition> partition_;
  std::vector<bool> kept_;  // with a mirror

 private:
  void keep(const std::vector<bool>& kept);
  const bool mirrors_;
};

}  // namespace weft::parallel
