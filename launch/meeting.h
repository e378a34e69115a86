// Where the ranks of a run meet: the store that weftrun hosts. Of several nodes, where their
// weftruns agree on who has which ranks and on how an attempt ended.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "weft/comm/store/failure.h"
#include "weft/launch/environment.h"
#include "weft/launch/options.h"

namespace weft::launch {

/// Of several nodes, node 0 hosts two stores at --rdzv-endpoint's host: the weftruns' own at its
/// port, for the whole run, and one per attempt for the ranks, at a free port. With one node there
/// is only the latter, on loopback, and nothing to agree on.
class Meeting {
 public:
  /// How an attempt ended on all nodes together.
  struct End {
    int status = 0;  ///< 0: well
    std::string text = {};
  };

  /// Throws InvalidArgument for a token file that others may read, Comm for a port in use.
  explicit Meeting(const Options& options);
  /// Node 0 waits a moment for the others to have read the end.
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  /// A new store for the ranks of a new attempt.
  void open(int attempt);
  using Say = std::function<void(const std::string& line)>;
  /// Waits until all nodes have opened it, and says for which if it takes long. Throws Timeout,
  /// naming the node that is not there.
  Place join(const Say& say);
  /// From here on end_fd() tells. Starts a thread, which must take no signals.
  void watch();

  /// Tells the attempt's ranks, on all nodes, who failed first. Where their store is gone, nothing.
  void note(const comm::Failure& failure) noexcept;
  /// All ranks of this node have ended well, or the attempt has failed here.
  void tell(const End& end) noexcept;
  /// To be polled: readable when the end of the attempt is known; -1: one node.
  int end_fd() const;
  /// The first failure of any node, or that all ended well; nothing: not known yet, or one node.
  std::optional<End> end() const;

 private:
  struct Nodes;
  const Options& options_;
  std::string token_;
  std::unique_ptr<Nodes> nodes_;
  struct RankStore;
  std::unique_ptr<RankStore> ranks_;
};

}  // namespace weft::launch
