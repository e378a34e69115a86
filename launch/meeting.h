// Where the ranks of a run meet: the store that weftrun hosts. With several nodes, their weftruns
// also agree there on each node's ranks, and on how an attempt ended.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/comm/store/failure.h"
#include "weft/launch/environment.h"
#include "weft/launch/options.h"

namespace weft::launch {

/// With several nodes, node 0 hosts two kinds of stores at --rdzv-endpoint's host: one for the
/// weftruns at its port, for the whole run, and one per attempt for the ranks, at a free port. With
/// one node there is only the latter, on loopback, and nothing to agree on.
///
/// With --nnodes MIN:MAX each weftrun says twice a second that it lives. Of one that is silent for
/// 5 seconds node 0 tells the ranks that its ranks have failed. Its place may then be taken again.
class Meeting {
 public:
  /// How an attempt ended on all nodes together.
  struct End {
    int status = 0;  ///< 0: all ranks ended well
    std::string text = {};
  };

  /// Throws InvalidArgument for a token file that others may read, Comm for a port in use.
  explicit Meeting(const Options& options);
  /// On node 0, waits a short time until the others have read the end.
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  /// A new store for the ranks of a new attempt.
  void open(int attempt);
  using Say = std::function<void(const std::string& line)>;
  /// Waits until all nodes have opened it; if it takes long, says for which nodes it waits. Throws
  /// Timeout, naming the node that is missing.
  Place join(const Say& say);
  /// Starts a thread, which must take no signals, and signals the end by end_fd().
  void watch();

  /// Tells the attempt's ranks, on all nodes, who failed first; does nothing without their store.
  void note(const comm::Failure& failure) noexcept;
  /// Tells the ranks that one has failed, if the run may go on. Returns whether the others go on
  /// without it, which takes at least `least` of them.
  bool lose(const comm::Failure& failure, int least) noexcept;
  /// What the ranks' own list says, before lose(), about a rank whose process has ended.
  struct Membership {
    bool has_finished = false;     ///< it has left by itself: it is not needed any more
    bool group_timed_out = false;  ///< the present group has waited in vain for a rank
  };
  Membership membership_of(int rank) noexcept;
  /// Reports that all ranks of this node have ended well, or that the attempt has failed here.
  void tell(const End& end) noexcept;
  /// To be polled: readable when there is news, or the end of the attempt is known; -1: one node.
  int end_fd() const;
  /// Lines for the user about nodes that have gone or come; each line is returned once.
  std::vector<std::string> news();
  /// The first failure of any node, or that all ended well; nothing if unknown or with one node.
  std::optional<End> end() const;

 private:
  struct Nodes;
  const Options& options_;
  std::string token_;
  struct RankStore;
  std::unique_ptr<RankStore> ranks_;
  std::unique_ptr<Nodes> nodes_;  // its thread uses ranks_
};

}  // namespace weft::launch
