// Which ranks take part in a run that goes on when some of them fail, and when they come back.
//
// The ranks of such a run form one group after the other: generation 0 has all of them, and each
// change makes a new generation. A rank keeps its number in the run, and its place in a group is
// its place among the numbers. The list of generations only grows, and each entry is written once
// (Store::set_once), so the launcher and the ranks, which all write to it, see the same history:
//   elastic/7/ranks     "0 2": the ranks of generation 7; empty: the run has ended
//   elastic/7/keys/...  the keys of its group, and who failed first in it
//   elastic/waiting/1   rank 1 has come back and waits to be invited
// A rank that loses another one goes from generation to generation until a group forms.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/comm/init.h"
#include "weft/comm/store/deadline.h"
#include "weft/comm/store/failure.h"
#include "weft/comm/store/store.h"

namespace weft::comm {

/// For one thread. Throws what the store throws.
class Membership {
 public:
  using Ranks = std::vector<int>;  ///< increasing

  /// `store`: the launcher's, which outlives every rank.
  explicit Membership(std::shared_ptr<Store> store) : store_(std::move(store)) {}

  // --- For the launcher ---

  /// Announces generation 0: the ranks 0 to size - 1.
  void begin(int size);
  /// Call it when a rank has failed. Tells the groups that wait for the rank, and announces a
  /// generation without it, or the end of the run if fewer than `least` members would be left.
  /// Returns whether the run goes on.
  bool lose(const Failure& failure, int least);

  // --- For ranks ---

  /// The ranks of a generation; nothing if it is not announced by the deadline.
  std::optional<Ranks> ranks(int generation, const Deadline& deadline);
  /// The store in which the ranks of a generation meet.
  std::shared_ptr<Store> keys(int generation) const;
  /// Whether a rank of that generation has failed, so that its group cannot form.
  bool has_failed(int generation) const;
  /// For a rank that has come back: waits for an invitation, as long as the run lasts. Returns the
  /// generation; -1 if the run has ended.
  int await_invitation(int rank);
  /// For the lowest rank of a generation, between steps: invites the waiting ranks for which
  /// may_come(rank) is true. Returns whether a later generation has ranks that this one lacks.
  bool grows(int generation, const std::function<bool(int)>& may_come);
  /// Call it when a member of `generation` has finished, so that no rank waits for it any more.
  void leave(int rank, int generation);

 private:
  int last();
  Ranks ranks_at(int generation) const;
  bool announce(int generation, const Ranks& ranks);
  void note(int generation, const Failure& failure) const;

  const std::shared_ptr<Store> store_;
  int known_ = -1;  // the last generation that has been seen
};

/// How a process takes part in an elastic run.
struct ElasticRun {
  std::shared_ptr<Membership> membership = {};  ///< null: the ranks stay those of the start
  int rank = 0;                                 ///< its number in the run
  bool returns = false;                         ///< it takes the place of one that has failed
  /// Makes a group; all its ranks call it. `keys`: the generation's; `place`: this rank's place
  /// among its ranks. Without a membership the arguments are not used.
  std::function<std::shared_ptr<ProcessGroup>(const std::shared_ptr<Store>& keys,
                                              const Generation& generation, int place)>
      connect = {};
};

/// Reads the environment: an elastic run if weftrun --min-nproc has started this process, else a
/// run whose connect() is init_process_group(options). In an elastic run it sets
/// thread_state().rank to the number in the run.
ElasticRun elastic_run(const InitOptions& options = {});

}  // namespace weft::comm
