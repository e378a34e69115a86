// What goes between the ranks of a pipeline: activations one way, their gradients the other.
// Private to parallel/.
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

#include "weft/comm/process_group.h"
#include "weft/parallel/schedule.h"
#include "weft/tensor/tensor.h"

namespace weft::parallel {

/// A message whose tensors have their forms; their values may still be on the way.
class Arrival {
 public:
  /// Returns when this thread may read them. Undefined tensors stay so, those that needed gradients
  /// where they came from need them here.
  const std::vector<Tensor>& wait() const;

 private:
  friend class StageLinks;
  std::vector<Tensor> tensors_;
  std::vector<comm::Work> works_;
};

/// The connections of one rank to those that it exchanges tensors with: a group of two ranks for
/// each direction. A group runs its operations in order; in one for both directions two ranks that
/// send first would wait for each other.
///
/// A message says what it is: action, rows of the batch, and the dtype, shape and strides of each
/// tensor. What a rank sends is received in the order in which its schedule sends it, as soon as it
/// comes, by a thread per sender: so sends wait for nobody's actions.
class StageLinks {
 public:
  using Route = std::pair<int, int>;  ///< from rank, to rank
  using Sends = std::map<int, std::vector<Action>>;
  using Deliver = std::function<void(const Action& sent, Arrival arrival)>;
  using Fail = std::function<void(std::exception_ptr error)>;

  /// All ranks of the group call it, with the same routes.
  StageLinks(comm::ProcessGroup& group, const std::set<Route>& routes);
  /// Aborts what is on its way, if anything is.
  ~StageLinks();
  StageLinks(const StageLinks&) = delete;
  StageLinks& operator=(const StageLinks&) = delete;

  /// Posts it. `rows`: of the whole batch; they tell one batch from another. The tensors may not be
  /// changed before finish(). Throws Unsupported for more tensors than a message describes.
  void send(int to, const Action& action, std::int64_t rows, std::span<const Tensor> tensors);
  /// Waits for this message, which must be the next one from there. Throws Comm for another one.
  Arrival receive(int from, const Action& sent, std::int64_t rows, Device device);

  /// Receives, until finish(), what each rank sends, and hands it to `deliver`, on threads with
  /// this one's state; after an error, which goes to `fail`, nothing more from that rank.
  void begin(const Sends& sends, std::int64_t rows, Device device, const Deliver& deliver,
             const Fail& fail);
  /// Waits until all has been received and sent; throws what sends failed by.
  void finish();
  /// Ends the connections, from any thread: who waits gets Comm.
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
