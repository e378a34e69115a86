// ProcessGroup: collective operations on tensors between the ranks of a run.
//
//   auto group = comm::init_process_group();        // env://, as weftrun, torchrun ... set it
//   group->all_reduce(x).wait();                    // every rank's x becomes the sum
//   comm::Work work = group->broadcast(weights, 0); // runs while this thread goes on
//   ...
//   work.wait();
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/comm/backend/backend.h"
#include "weft/comm/group/options.h"
#include "weft/comm/group/work.h"
#include "weft/comm/store/store.h"
#include "weft/tensor/tensor.h"

namespace weft::comm {

/// Operations run in the order in which they were called, on the group's own thread; all ranks must
/// call the same ones in the same order (send and recv: in matching order). Several groups can
/// exist side by side and do not wait for each other. Calls are thread-safe, but threads that share
/// a group must agree on the order themselves.
///
/// Tensors must be dense (no gaps; the dimension order must be the same on all ranks) and must not
/// be changed or read before the work is done. Results are written in place. An operation on
/// tensors of a CUDA device runs after the work in the caller's current stream. If NCCL fails after
/// its work was queued, wait() may have returned already: then the next call throws. The call
/// itself throws InvalidArgument, Shape, Dtype or Device for a user's mistake. Work::wait() throws
/// later failures:
///   PeerFailed   another rank is gone; the text names it and, if known, the rank that failed
///                first, why, and in which operation
///   Timeout      options().timeout passed; the text names the operation and the missing ranks
///   Comm         the ranks' operations do not match, or the group was aborted. A rank that finds
///                a mismatch names both calls, if the other rank tells its own in time; others may
///                get PeerFailed, with the same text, and Timeout if none of them receives
///                anything. NCCL finds none without check_fingerprints: the results may be wrong
/// The first failure ends the group: queued operations fail with it, too.
class ProcessGroup {
 public:
  /// Waits until all ranks have called it. Then `make` makes the backend from `store`, in which the
  /// ranks also write and read which of them failed first. Throws PeerFailed if a rank fails before
  /// all are connected, Timeout with the ranks that have not come within options.timeout. Messages
  /// call the ranks by their numbers in the run, which `generation` may give.
  ProcessGroup(BackendMaker make, std::shared_ptr<Store> store, int rank, int size,
               const ProcessGroupOptions& options = {}, const Generation& generation = {});
  /// Aborts the operations that have not run.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const;
  int size() const;
  const char* backend() const;  ///< its name
  const ProcessGroupOptions& options() const;
  const std::shared_ptr<Store>& store() const;
  /// What subgroups share with the group that they come from: the store, and the ranks' numbers.
  const std::shared_ptr<Store>& run_store() const;
  int number_in_run(int rank) const;

  /// x on all ranks becomes x of `root`.
  [[nodiscard]] Work broadcast(const Tensor& x, int root);
  /// avg: for floating dtypes only.
  [[nodiscard]] Work all_reduce(const Tensor& x, ReduceOp op = ReduceOp::sum);
  /// Only the root's x is defined afterwards.
  [[nodiscard]] Work reduce(const Tensor& x, int root, ReduceOp op = ReduceOp::sum);
  /// y [size, x's shape]: rank r's x becomes y[r].
  [[nodiscard]] Work all_gather(const Tensor& y, const Tensor& x);
  /// y becomes the reduced x[rank]; x [size, y's shape] is undefined afterwards.
  [[nodiscard]] Work reduce_scatter(const Tensor& y, const Tensor& x, ReduceOp op = ReduceOp::sum);
  /// Like all_gather, but only for root; y may be undefined elsewhere.
  [[nodiscard]] Work gather(const Tensor& y, const Tensor& x, int root);
  /// y becomes root's x[rank]; elsewhere x may be undefined.
  [[nodiscard]] Work scatter(const Tensor& y, const Tensor& x, int root);
  /// y[r] becomes rank r's x[rank].
  [[nodiscard]] Work all_to_all(const Tensor& y, const Tensor& x);
  [[nodiscard]] Work send(const Tensor& x, int to);
  [[nodiscard]] Work recv(const Tensor& x, int from);
  /// Done when all ranks have called it.
  [[nodiscard]] Work barrier();

  /// A CPU tensor, not initialised, for values that are reduced again and again: in memory of the
  /// backend if it can reduce in place there (shm): then it waits for the other ranks. It counts as
  /// any tensor's does. All ranks call it with the same shape and dtype.
  Tensor empty(const Shape& shape, DType dtype = DType::f32);

  /// Waits until all ranks have called it. If some do not, rank 0 finds out which ones, and the
  /// others throw Timeout with the missing ranks.
  void monitored_barrier(std::chrono::milliseconds timeout);
  /// Sends any bytes; returns root's.
  std::string broadcast_object(std::string_view object, int root);
  /// Returns the objects of all ranks, by rank.
  std::vector<std::string> all_gather_object(std::string_view object);

  /// The group of some of the ranks, in increasing order. All ranks of this group must call it;
  /// ranks that are not in `ranks` get null. `name` is for traces. Throws InvalidArgument for a
  /// rank that does not exist, and PeerFailed or Timeout like the constructor.
  std::shared_ptr<ProcessGroup> subgroup(std::vector<int> ranks, std::string name = {});
  /// A subgroup of all ranks: its operations do not wait for those of this group, nor the other way
  /// round.
  std::shared_ptr<ProcessGroup> duplicate();

  /// Ends the group at once, from any thread: pending work throws Comm.
  void abort() noexcept;

  /// A text in the spans and messages of the operations that this thread starts while the tag
  /// lives: DDP's "bucket 2". All ranks must give a collective the same one, and with `same_module`
  /// call it in modules of the same path.
  class Tag {
   public:
    explicit Tag(std::string_view text, bool same_module = false);
    ~Tag();
    Tag(const Tag&) = delete;
    Tag& operator=(const Tag&) = delete;

   private:
    std::string text_before_;
    bool same_module_before_;
  };

  /// Whether a failure has ended it; not abort().
  bool failed() const;
  Traffic traffic() const;

  struct Impl;

 private:
  explicit ProcessGroup(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

/// Runs `f` as ranks 0 to n-1 of a group, in threads of this process, which share the caller's
/// cores and have its thread state except the rank. Returns when all have ended. If some end with
/// errors, throws the first that is not PeerFailed or Comm, followed by "rank r" if its text does
/// not name the rank. A rank that fails aborts the group.
void run_ranks(int n, const std::function<void(ProcessGroup& group)>& f,
               const ProcessGroupOptions& options = {});

}  // namespace weft::comm
