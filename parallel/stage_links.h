// Messages between the ranks of a pipeline: activations in one direction, their gradients in the
// other. Private to parallel/.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/parallel/schedule.h"
#include "weft/tensor/tensor.h"

namespace weft::parallel {

/// A message whose tensors have their shapes and dtypes; their values may still be arriving.
class Arrival {
 public:
  /// Returns the tensors when this thread may read them. Undefined tensors stay undefined; tensors
  /// that required gradients on the sending rank require them here.
  const std::vector<Tensor>& wait() const;

 private:
  friend class StageLinks;
  std::vector<Tensor> tensors_;
  std::vector<comm::Work> works_;
};

/// The connections of one rank to the ranks with which it exchanges tensors: a group of two ranks
/// for each direction. A group runs its operations in order; with one group for both directions,
/// two ranks that both send first would wait for each other.
///
/// A message says what it is: action, rows of the batch, and the dtype, shape and strides of each
/// tensor. One thread per sender receives that rank's messages as soon as they come, in the order
/// in which its schedule sends them: so a send never waits for the receiver's actions.
class StageLinks {
 public:
  using Route = std::pair<int, int>;  ///< from rank, to rank
  using Sends = std::map<int, std::vector<Action>>;
  using Deliver = std::function<void(const Action& sent, Arrival arrival)>;
  using Fail = std::function<void(std::exception_ptr error)>;

  /// All ranks of the group call it, with the same routes.
  StageLinks(comm::ProcessGroup& group, const std::set<Route>& routes);
  /// Aborts the messages in progress, if there are any.
  ~StageLinks();
  StageLinks(const StageLinks&) = delete;
  StageLinks& operator=(const StageLinks&) = delete;

  /// Posts a message. `rows`: of the whole batch, checked by the receiver. The tensors must not be
  /// changed before finish(). Throws Unsupported for more tensors than a message can describe.
  void send(int to, const Action& action, std::int64_t rows, std::span<const Tensor> tensors);
  /// Waits for this message, which must be the next one from that rank. Throws Comm if another one
  /// arrives.
  Arrival receive(int from, const Action& sent, std::int64_t rows, Device device);

  /// Until finish(), receives each rank's messages and passes them to `deliver`, on threads with
  /// the calling thread's state. An error goes to `fail`, and nothing more is received from that
  /// rank.
  void begin(const Sends& sends, std::int64_t rows, Device device, const Deliver& deliver,
             const Fail& fail);
  /// Waits until everything has been received and sent; throws the errors of sends.
  void finish();
  /// The traffic of all connections.
  comm::Traffic traffic() const;
  /// Ends the connections, from any thread: waiting threads get Comm.
  void abort() noexcept;

 private:
  struct Link;
  class Receiver;
  using Links = std::map<int, std::unique_ptr<Link>>;  // by rank
  Link& link(const Links& links, int other) const;
  Arrival receive(Link& from, const Action& sent, std::int64_t rows, Device device);

  Links to_, from_;
  std::vector<comm::Work> sent_;
};

}  // namespace weft::parallel
