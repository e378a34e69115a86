// The Reducer: averages a module's gradients over the ranks while backward computes them.
//
//   backward   fc.weight ready   conv2 ready         conv1 ready
//              | * 1/world       |                   |
//   bucket 0   [=== all-reduce ===]                  |
//   bucket 1                     (full) [=== all-reduce ===]
//   bucket 2                                         (full) [== all-reduce ==] backward returns
//
// The gradients lie in buckets, memory of the reducer's own, and are reduced in place. A bucket is
// sent when it is full and all buckets before it have been sent: so the ranks, whose gradients may
// come in different orders, send the same buckets in the same order. A checkpoint keeps the order
// from which they were made: they decide in which order a ring adds up the ranks' numbers.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/comm/group/process_group.h"
#include "weft/nn/module.h"
#include "weft/parallel/buckets.h"
#include "weft/parallel/coalesced.h"
#include "weft/parallel/comm_hooks.h"

namespace weft::parallel {

/// PyTorch's names and defaults. The same on all ranks.
struct DistributedDataParallelOptions {
  /// A bucket is closed when it has that many MiB; infinity: never. Default: 1 for the first
  /// bucket, 25 for others.
  std::optional<double> bucket_cap_mb = {};
  /// Allows steps that leave parameters out: those that the outputs of forward do not depend on
  /// count as ready when backward begins. The tape is walked in each forward.
  bool find_unused_parameters = false;
  /// Rank 0's buffers are copied to the other ranks before each forward in training.
  bool broadcast_buffers = true;
  /// Each step uses the same parameters, also inside autograd::checkpoint. The first backward finds
  /// out which, and overlaps nothing.
  bool static_graph = false;
  /// Replaces division and all-reduce.
  CommHook comm_hook = {};
};

/// PyTorch's, and `step`.
struct JoinOptions {
  /// true: divide gradients by the number of ranks, also when some have no batch left; false: by
  /// the number of ranks that have one, so that the last batches have the same weight as the
  /// others.
  bool divide_by_initial_world_size = true;
  /// Called on a rank without batches in each step of the others, when it has their mean gradients:
  /// optimizer.step(), to keep the state of its optimiser equal to theirs.
  std::function<void()> step = {};
};

/// Of one rank.
struct ReducerStats {
  std::vector<std::int64_t> bucket_bytes;  ///< as the buckets are now, in their order
  std::int64_t reductions = 0;             ///< backwards that averaged
  std::int64_t bytes_reduced = 0;          ///< of gradients, in all of them
  /// Time in all of them: from the first bucket sent to the last bucket reduced ...
  double reduce_ms = 0;
  double exposed_ms = 0;  ///< ... and from the last gradient ready to the last bucket reduced
};

/// When a Reducer averages.
enum class Averages {
  in_backward,
  /// By average() alone. No order of gradients is to be found out: the buckets are filled in the
  /// order of the parameters, and never rebuilt.
  on_call,
};

class Reducer {
 public:
  /// Throws InvalidArgument on all ranks when their models differ, or have no parameter that
  /// requires a gradient. Copies rank 0's parameters and buffers to all ranks.
  Reducer(const nn::ModuleBase& module, std::shared_ptr<comm::ProcessGroup> group,
          DistributedDataParallelOptions options, Averages when = Averages::in_backward);
  /// Gradients stay, in memory of their own.
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Checks that the module is still the one that was wrapped; copies rank 0's buffers.
  void before_forward();
  /// Whether after_forward() is to be called.
  bool walks_outputs() const { return options_.find_unused_parameters && !options_.static_graph; }
  void after_forward(std::span<const Tensor> outputs);

  /// Whether backwards average, and forwards broadcast buffers; returns what it was.
  bool set_sync(bool sync);

  /// Averages the gradients that were accumulated under set_sync(false), in any number of
  /// backwards; a parameter without a gradient counts as zeros. All ranks call it.
  void average();

  /// Runs `body`, this rank's loop over its batches; ranks may have different numbers of them. A
  /// rank that is done takes part in the others' reductions until all are done; then all have the
  /// parameters and buffers of a rank that was among the last. All ranks call it. A body that
  /// throws aborts the group.
  void join(const std::function<void()>& body, const JoinOptions& options);

  const ReducerStats& stats() const { return stats_; }
  /// The parameters of each bucket, in their order.
  std::vector<std::vector<std::string>> bucket_names() const;

  /// DistributedDataParallel's functions of these names.
  nn::NamedTensors engine_state() const;
  void load_engine_state(const nn::NamedTensors& state);

 private:
  using Clock = std::chrono::steady_clock;

  struct Parameter {
    std::string name;
    Tensor tensor;
    DType dtype;
    Device device;
    std::size_t bucket = 0;
    Tensor place = {};  // its gradient's, in the bucket
    std::vector<autograd::HookHandle> hooks = {};
    bool attached = false;  // its gradient lies there
    // Since the last reduction:
    bool reached = false;  // by the outputs of a forward
    bool used = false;     // by a backward
    // In the backward in progress:
    bool arrived = false;  // its gradient
    bool ready = false;    // arrived, or will not: its bucket may be sent
    // Of the last reduction that asked:
    bool used_somewhere = true;  // by a rank
    bool always_unused = false;  // static_graph: by this one
  };
  struct Bucket {
    Tensor memory;
    std::vector<std::size_t> members;
    std::size_t pending = 0;  // members that are not ready
    Reduction reduction = {};
  };

  std::vector<Tensor> state() const;
  void add_hooks();
  void release() noexcept;
  BucketPlan plan(std::span<const std::int64_t> limits,
                  std::span<const std::size_t> order = {}) const;
  std::vector<std::int64_t> bucket_limits() const;
  void make_buckets(const BucketPlan& plan);
  void rebuild_buckets(const std::vector<std::size_t>& order);
  void check_unchanged() const;
  void broadcast_buffers();

  // Called by the tape.
  void on_gradient(std::size_t index);
  void check_not_sent(std::size_t index) const;
  void end_backward(const std::exception_ptr& error);

  void begin_reduction();
  void make_ready(std::size_t index);
  void send_next();
  std::vector<std::size_t> complete_reduction();
  std::function<void()> ask_for_uses();
  void wait_for_buckets();
  void hand_over_gradients();
  void reset();
  std::string announce(const char* what);
  void follow_others();
  [[noreturn]] void throw_unexpected(const Parameter& p) const;
  [[noreturn]] void throw_without_gradient(const std::vector<std::size_t>& missing) const;

  const nn::ModuleBase module_;
  const std::shared_ptr<comm::ProcessGroup> group_;
  const DistributedDataParallelOptions options_;
  std::vector<Parameter> parameters_;                            // that require a gradient
  std::vector<std::pair<std::string, Tensor>> frozen_;           // the others
  std::unordered_map<const TensorImpl*, std::size_t> index_of_;  // in parameters_
  std::vector<Coalesced> buffers_;                               // by device
  std::vector<Bucket> buckets_;
  ReducerStats stats_;

  mutable std::mutex mutex_;  // backward may call from the workers of several devices
  bool sync_ = true;
  bool walked_ = false;   // some parameter is marked as reached
  bool rebuilt_ = false;  // or never to be
  // static_graph: the ranks have asked each other; this one has had a backward.
  bool graph_known_ = false, graph_learnt_ = false;
  // In which gradients became ready in the first reduction; rank 0's once the buckets are rebuilt.
  std::vector<std::size_t> order_;
  const JoinOptions* joining_ = nullptr;  // inside of join()
  int root_ = 0;                          // whose buffers are everybody's
  double divisor_ = 1;                    // of gradients
  // Of the backward in progress:
  bool reducing_ = false;
  std::size_t next_ = 0;  // bucket to be sent
  Clock::time_point first_sent_, last_arrival_;
};

/// While it lives, backwards add to the gradients of this rank alone, and forwards broadcast no
/// buffers. The first backward after its end averages all that has been added up.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(Reducer& reducer) : reducer_(reducer), before_(reducer.set_sync(false)) {}
  ~NoSync() { reducer_.set_sync(before_); }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  Reducer& reducer_;
  const bool before_;
};

}  // namespace weft::parallel
