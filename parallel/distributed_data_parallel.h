// DistributedDataParallel: one model on each rank, each with its own part of every batch, and
// gradients averaged over the ranks.
//
//   auto group = comm::init_process_group();
//   Net model;
//   parallel::DistributedDataParallel ddp(model, group);
//   optim::SGD sgd(model.parameters(), {.lr = 0.01});
//   ...
//   sgd.zero_grad();
//   auto loss = nn::cross_entropy(ddp(x), label);
//   loss.backward();  // model's gradients are the ranks' mean when this returns
//   sgd.step();       // so all ranks make the same update
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/core/base/error.h"
#include "weft/nn/module.h"
#include "weft/parallel/join.h"
#include "weft/parallel/reducer.h"
#include "weft/parallel/unused_parameters.h"
#include "weft/tensor/tree.h"

namespace weft::parallel {

/// PyTorch's names and defaults. The same on all ranks.
struct DistributedDataParallelOptions {
  /// Size in MiB at which a bucket is closed; infinity: never. Default: 1 for the first, else 25.
  std::optional<double> bucket_cap_mb = {};
  /// The order in which buckets are filled; with find_unused_parameters arrival means reversed.
  BucketOrder bucket_order = BucketOrder::arrival;
  /// Allows steps that do not use all parameters: those on which the outputs of forward do not
  /// depend count as ready when backward begins. To find them, each forward walks the tape.
  bool find_unused_parameters = false;
  /// Rank 0's buffers are copied to the other ranks before each forward in training.
  bool broadcast_buffers = true;
  /// Promises that each step uses the same parameters, also inside autograd::checkpoint. The first
  /// backward finds out which, and does not overlap communication.
  bool static_graph = false;
  CommHook comm_hook = {};  ///< used instead of division and all-reduce

  /// The options that the Reducer takes.
  ReducerOptions for_reducer() const {
    const bool walks_outputs = find_unused_parameters && !static_graph;
    return {.bucket_cap_mb = bucket_cap_mb,
            .broadcast_buffers = broadcast_buffers,
            .comm_hook = comm_hook,
            .order = walks_outputs && bucket_order == BucketOrder::arrival ? BucketOrder::reversed
                                                                           : bucket_order,
            .text = weft::detail::concat(
                "bucket_cap_mb=", bucket_cap_mb ? std::to_string(*bucket_cap_mb) : "-",
                " bucket_order=", kBucketOrderNames[static_cast<int>(bucket_order)],
                " find_unused_parameters=", find_unused_parameters,
                " broadcast_buffers=", broadcast_buffers, " static_graph=", static_graph,
                " comm_hook=", comm_hook ? "set" : "-")};
  }
};

/// Calls a module but is not one itself: names, state dict, printing and saving stay the module's.
/// PyTorch's DistributedDataParallel, reducer.cpp and distributed.py, with these differences:
///  - a backward that leaves parameters without a gradient, though no option allows it, throws
///    InvalidArgument itself, and names them; the other ranks go on with zeros in their place;
///  - no_sync() applies to backwards that run inside it, wherever their forward ran;
///  - each backward outside no_sync() averages: also a second one after the same forward, and one
///    after a forward of the module itself;
///  - buckets are rebuilt, once, at the end of the first such backward.
///
/// .grad() of a parameter is a view of a bucket with the parameter's strides (another view once the
/// buckets have been rebuilt); zero_grad() costs nothing. If find_unused_parameters or static_graph
/// finds that no rank used a parameter, its .grad() is undefined, so that optimisers skip it.
///
/// All ranks must call forward in training, and backward, equally often. A backward that fails once
/// it has finished a gradient aborts the group: the other ranks get PeerFailed. One that fails
/// before has sent nothing, and they wait until this rank ends, or for their timeout. From one
/// thread at a time. Unsupported in graph::capture.
template <std::derived_from<nn::ModuleBase> M>
class DistributedDataParallel {
 public:
  /// Keeps `module`, which is a handle. All ranks call it: rank 0's parameters and buffers are
  /// copied to all ranks. Throws InvalidArgument, on every rank, when one has another model or
  /// other options, naming that rank and the first difference, and for a module without a parameter
  /// that requires a gradient. Another error, such as OutOfMemory, aborts the group.
  DistributedDataParallel(M module, std::shared_ptr<comm::ProcessGroup> group,
                          const DistributedDataParallelOptions& options = {})
      : module_(std::move(module)),
        broadcasts_buffers_(options.broadcast_buffers),
        reducer_(std::make_unique<Reducer>(module_, std::move(group), options.for_reducer())) {
    if (options.find_unused_parameters || options.static_graph) {
      unused_ = std::make_unique<UnusedParameters>(*reducer_, options.static_graph);
    }
  }
  /// `group` must outlive this.
  DistributedDataParallel(M module, comm::ProcessGroup& group,
                          const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(
            std::move(module), std::shared_ptr<comm::ProcessGroup>(std::shared_ptr<void>(), &group),
            options) {}

  /// module(args...); in training rank 0's buffers are copied to all ranks first. Throws Device,
  /// Dtype or InvalidArgument when the module was moved, converted or unfrozen since it was
  /// wrapped; the first call also throws it for trained parameters that were added since. With
  /// find_unused_parameters the result must be a type whose tensors tensor/tree.h finds, else
  /// InvalidArgument.
  template <class... Args>
  decltype(auto) operator()(Args&&... args) {
    using Result = std::remove_cvref_t<decltype(module_(std::forward<Args>(args)...))>;
    const bool walks_outputs = unused_ && unused_->walks_outputs();
    if (walks_outputs) check_walkable<Result>("ddp");
    reducer_->before_forward();
    if constexpr (std::is_void_v<Result>) {
      module_(std::forward<Args>(args)...);
    } else {
      decltype(auto) result = module_(std::forward<Args>(args)...);
      if (walks_outputs) {
        std::vector<Tensor> outputs;
        for_each_tensor(result, [&](const Tensor& x) { outputs.push_back(x); });
        unused_->after_forward(outputs);
      }
      return result;
    }
  }

  M& module() { return module_; }
  bool broadcasts_buffers() const { return broadcasts_buffers_; }

  /// auto local = ddp.no_sync();   // until its end
  NoSync no_sync() { return NoSync(*reducer_); }

  /// For ranks with different numbers of batches: runs `body`, this rank's loop over its own
  /// batches. A rank that has no batch left takes part in the steps of the others, with zeros for
  /// gradients, until all are done. At the end it has the parameters and buffers of a rank that was
  /// among the last:
  ///   ddp.join([&] { for (auto& [x, label] : loader) ... });
  /// The state of its optimiser then differs from theirs, unless options.step updates it. Each
  /// backward outside no_sync() costs one more small collective. All ranks call it; a body that
  /// throws aborts the group.
  void join(const std::function<void()>& body, const JoinOptions& options = {}) {
    parallel::join(*reducer_, body, options);
  }

  const ReducerStats& stats() const { return reducer_->buckets().stats(); }  ///< of all reductions
  /// The parameters of each bucket, in the order in which they are sent.
  std::vector<std::vector<std::string>> bucket_names() const { return reducer_->buckets().names(); }

  /// The state that a checkpoint needs besides the module's: the order in which the gradients
  /// became ready in the first step, "order" (i64 [trained parameters]; nothing before that step,
  /// and in another bucket_order). It determines the buckets, and these the order in which the
  /// ranks' numbers are added. Without it the first step of a resumed run would have one bucket
  /// again, and with three or more ranks its last bits would differ. train::Recorder saves it:
  ///   recorder.resume(model, loader, sgd, ddp); ... recorder.save(model, loader, sgd, ddp);
  nn::NamedTensors engine_state() const { return reducer_->engine_state(); }
  /// Restores it: the buckets are those of the run that saved it, if bucket_cap_mb is the same. All
  /// ranks call it, between steps; rank 0's state is used. A state with another number of
  /// parameters is dropped with a warning; anything that is no such state, on one rank or more,
  /// throws InvalidArgument on every rank, and changes nothing.
  void load_engine_state(const nn::NamedTensors& state) { reducer_->load_engine_state(state); }

 private:
  M module_;
  bool broadcasts_buffers_;
  std::unique_ptr<Reducer> reducer_;
  std::unique_ptr<UnusedParameters> unused_;  // if unused parameters are allowed
};

}  // namespace weft::parallel
