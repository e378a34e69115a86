// Collectives by name: ranks may ask for them in different orders.
//
// A request is only stored, and runs when ranks wait for it. A rank that waits takes part in
// rounds. In each round the ranks
//   1. send each other the names of their open requests;
//   2. select those that all have requested, in the order of rank 0's requests;
//   3. run them, those of one kind and dtype together in one message up to the fusion threshold.
// A round waits for all ranks. So if no name of a round is common to all ranks, each rank waits for
// another name, and none can ever come: an error on all ranks.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/parallel/tensor_layout.h"
#include "weft/tensor/tensor.h"

namespace weft::parallel {

/// A request of a rank.
struct NamedRequest {
  enum class Kind { allreduce, allgather };

  Kind kind = Kind::allreduce;
  std::string name;
  comm::ReduceOp op = comm::ReduceOp::sum;  ///< of allreduce
  Tensor x;
  std::chrono::steady_clock::time_point asked = {};
  bool warned = false;  ///< a warning that others lag behind was logged

  bool done = false;
  Tensor result = {};
  std::string error = {};  ///< empty: there is a result
};

class NamedCollectives {
 public:
  /// Nothing else may use `group`.
  NamedCollectives(std::shared_ptr<comm::ProcessGroup> group, std::int64_t fusion_threshold,
                   std::chrono::milliseconds stall_warning);

  /// Throws InvalidArgument for a name that this rank has already asked for and not got, or that is
  /// empty or more than one line.
  std::shared_ptr<NamedRequest> ask(NamedRequest request);
  /// Takes part in rounds until the request is done. Throws InvalidArgument, on all ranks, when
  /// they asked for different things by this name, or when all wait and no name is common to all.
  Tensor wait(NamedRequest& request);

  /// The number of messages so far, without those that exchange names.
  std::int64_t messages_sent() const { return messages_sent_; }

 private:
  // A request as other ranks see it.
  struct Entry {
    NamedRequest::Kind kind = NamedRequest::Kind::allreduce;
    comm::ReduceOp op = comm::ReduceOp::sum;
    TensorLayout layout;
  };
  using Entries = std::vector<Entry>;
  // One name on all ranks.
  struct Common {
    std::shared_ptr<NamedRequest> request;
    std::vector<Shape> shapes;
    std::int64_t bytes = 0;  // of the result
  };

  static std::string to_text(const Entries& entries);
  static Entries from_text(const std::string& text);
  static std::string describe(const Entry& entry);
  static bool fit(const Entry& a, const Entry& b);

  void run_round();
  Entries own_entries() const;
  std::vector<Common> find_common(const std::vector<Entries>& told);
  [[noreturn]] void throw_deadlock(const std::vector<Entries>& told) const;
  void warn_of_stalled(const std::vector<Entries>& told);
  std::vector<std::vector<Common>> fuse(const std::vector<Common>& common) const;
  void allreduce(const std::vector<Common>& members);
  void allgather(const std::vector<Common>& members);

  const std::shared_ptr<comm::ProcessGroup> group_;
  const std::int64_t fusion_threshold_;
  const std::chrono::milliseconds stall_warning_;
  std::vector<std::shared_ptr<NamedRequest>> pending_;  // in the order in which they were asked for
  std::int64_t messages_sent_ = 0;
};

}  // namespace weft::parallel
