// Horovod: the ranks of a run, with the functions that Horovod's programs use.
//
//   const parallel::Horovod hvd = parallel::horovod_init();
//   hvd.broadcast_parameters(model.state_dict());
//   const Tensor mean = hvd.allreduce("loss", loss);
//
// Launched by `weftrun -np 4 -H localhost:4 program`. distributed_optimizer.h has the optimiser.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "weft/comm/group/process_group.h"
#include "weft/comm/init.h"
#include "weft/optim/optimizer.h"
#include "weft/parallel/named_collectives.h"
#include "weft/tensor/tensor.h"

namespace weft::parallel {

/// Horovod's HOROVOD_FUSION_THRESHOLD: 128 MiB.
inline constexpr std::int64_t kFusionThreshold = std::int64_t{128} << 20;

struct HorovodOptions {
  /// For collectives by name: at most this many bytes of results go in one message.
  std::int64_t fusion_threshold = kFusionThreshold;
  /// A warning is logged if some rank has not asked for a name after this time.
  std::chrono::milliseconds stall_warning{60'000};
  /// This rank's number on its host; by default its rank, as if there were one host.
  std::optional<int> local_rank = {};
};

/// A request of a rank for a collective by name.
class NamedWork {
 public:
  NamedWork(std::shared_ptr<NamedCollectives> collectives, std::shared_ptr<NamedRequest> request)
      : collectives_(std::move(collectives)), request_(std::move(request)) {}
  /// The result, which is a tensor of its own, when all ranks have asked. Throws as
  /// NamedCollectives does, and what ProcessGroup's operations throw.
  Tensor wait() const { return collectives_->wait(*request_); }

 private:
  std::shared_ptr<NamedCollectives> collectives_;
  std::shared_ptr<NamedRequest> request_;
};

/// A handle: copies refer to the same ranks. Differences from Horovod:
///  - it is a value; a program may make several, nothing is global, and nothing must be shut down;
///  - the name comes first, and is required;
///  - ranks negotiate names when they wait, not all the time on a background thread. The others
///    cannot continue while a rank has asked but does not wait, so it must not run another
///    collective before it waits. If all wait and no name is common to all, that is an error;
///  - a rank that does not take part is an error after ProcessGroupOptions::timeout; Horovod only
///    repeats a warning (the group itself logs that it waits, after ProcessGroupOptions::slow);
///  - the environment's HOROVOD_... settings are options here, except those of ranks, which are
///    read;
///  - there is no join(), no elastic run, no process set, no Adasum, no autotuning and no timeline
///    format of Horovod's (core/trace/trace.h writes traces).
/// From one thread at a time.
class Horovod {
 public:
  /// All ranks of the group call it.
  explicit Horovod(std::shared_ptr<comm::ProcessGroup> group, const HorovodOptions& options = {});
  /// `group` must outlive this.
  explicit Horovod(comm::ProcessGroup& group, const HorovodOptions& options = {});

  int rank() const { return group_->rank(); }
  int size() const { return group_->size(); }
  int local_rank() const { return local_rank_; }
  const std::shared_ptr<comm::ProcessGroup>& group() const { return group_; }

  /// The mean (or `op`) over the ranks' tensors with this name; x does not change. Throws Dtype for
  /// the mean of a dtype that is not floating.
  Tensor allreduce(const std::string& name, const Tensor& x,
                   comm::ReduceOp op = comm::ReduceOp::avg) const {
    return allreduce_async(name, x, op).wait();
  }
  /// Requests before the first wait() share one message. x must not be changed before wait()
  /// returns.
  NamedWork allreduce_async(const std::string& name, const Tensor& x,
                            comm::ReduceOp op = comm::ReduceOp::avg) const;
  /// The ranks' x [n_r, ...], concatenated along dimension 0, the only one in which they may
  /// differ. Throws Shape for a scalar.
  Tensor allgather(const std::string& name, const Tensor& x) const {
    return allgather_async(name, x).wait();
  }
  NamedWork allgather_async(const std::string& name, const Tensor& x) const;

  /// Copies root_rank's values to all ranks, in place: of Module::state_dict(), buffers included.
  /// Throws InvalidArgument on every rank, naming the first difference, when one has other names,
  /// dtypes or shapes.
  void broadcast_parameters(const optim::NamedTensors& tensors, int root_rank = 0) const;
  /// Copies learning rates, step counts and moments; the ranks' optimisers need not have stepped.
  void broadcast_optimizer_state(optim::Optimizer& optimizer, int root_rank = 0) const;

  /// Messages of collectives by name so far.
  std::int64_t messages_sent() const { return collectives_->messages_sent(); }
  /// Another group of all ranks, whose operations do not wait for those of other groups. All ranks
  /// call it.
  std::shared_ptr<comm::ProcessGroup> own_group() const;

 private:
  std::shared_ptr<comm::ProcessGroup> group_;
  std::shared_ptr<NamedCollectives> collectives_;
  int local_rank_;
};

/// Meets the other ranks (comm::init_process_group). With env:// the launcher sets local_rank().
Horovod horovod_init(const comm::InitOptions& init = {}, HorovodOptions options = {});

}  // namespace weft::parallel
