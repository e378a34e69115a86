// GradientExchange: one optimiser's gradients, reduced over the ranks once per step, while backward
// computes them.
//
//   state        zero_grad()            backward                synchronize()   step()
//   collecting   -> reducing            adds up on this rank    -> reduced      -> collecting
//   reducing     drops what was sent    sends what is complete  -> reduced      -> collecting
//   reduced      -> reducing            an error                nothing to do   -> collecting
//
// It begins as collecting. So gradients are sent during backward only between an optimiser's own
// zero_grad() and step(). A gradient that another backward leaves in its parameters, as the
// generator's does in the discriminator, stays on the rank until zero_grad() drops it or step()
// reduces it.
//
// A message holds several gradients and after them one number for each, 1 if this rank has it: a 0
// in the sum tells all ranks that none has that gradient, without a message of its own. Which
// gradients form a message is decided once, in the reverse order of the parameters, and messages
// are sent in that order. So the ranks send the same messages, though their gradients may come in
// different orders or not at all, and each run adds up in the same order, a resumed one too: a
// checkpoint needs nothing of this.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/comm/group/process_group.h"
#include "weft/optim/optimizer.h"
#include "weft/parallel/comm_hooks.h"
#include "weft/parallel/horovod.h"
#include "weft/parallel/reducer.h"

namespace weft::parallel {

/// How gradients are sent.
enum class Compression {
  none,
  bf16,  ///< half the bytes of f32, 8 bits of each gradient
};

/// The same on all ranks.
struct DistributedOptimizerOptions {
  /// avg or sum.
  comm::ReduceOp op = comm::ReduceOp::avg;
  Compression compression = Compression::none;
  /// Backwards whose gradients are added up before they are sent.
  int backward_passes_per_step = 1;
  /// Bytes at which a message is closed; 0: one for each gradient. An eighth of all gradients
  /// closes it too, from 1 MiB on: a message that waits for the last gradient does not overlap.
  std::int64_t fusion_threshold = kFusionThreshold;
};

class GradientExchange {
 public:
  /// All ranks call it. Throws InvalidArgument for names that DistributedOptimizer refuses, and on
  /// every rank when one has other names, shapes or options.
  GradientExchange(const Horovod& hvd, const std::vector<Tensor>& parameters,
                   const optim::NamedTensors& names, const DistributedOptimizerOptions& options);
  /// Gradients stay, in memory of their own.
  ~GradientExchange();
  GradientExchange(const GradientExchange&) = delete;
  GradientExchange& operator=(const GradientExchange&) = delete;

  // What DistributedOptimizer's functions of these names do beside the optimiser's.
  void zero_grad();
  void synchronize();
  /// Throws InvalidArgument on every rank when none has a gradient.
  void before_step();
  void after_step();

  /// The parameters of each message, in the order in which they are sent.
  std::vector<std::vector<std::string>> message_names() const;
  /// So far.
  std::int64_t messages_sent() const { return messages_sent_; }
  /// So far: buckets are messages here, and what zero_grad() dropped counts as well.
  const ReducerStats& stats() const { return stats_; }
  /// By the group of this optimiser alone, which the caller's does not count.
  comm::Traffic traffic() const { return group_->traffic(); }

 private:
  using Clock = std::chrono::steady_clock;
  enum class State { collecting, reducing, reduced };

  struct Parameter {
    std::string name;
    Tensor tensor;
    std::size_t message = 0;
    Tensor place = {};  // its gradient's, in the message
    Tensor mark = {};   // the number behind the gradients that says whether there is one
    std::vector<autograd::HookHandle> hooks = {};
    bool attached = true;   // its gradient lies there
    int arrivals = 0;       // backwards that reached it since zero_grad() or step()
    bool complete = false;  // its message may be sent
  };
  struct Message {
    Tensor memory, marks;
    std::vector<std::size_t> members;
    std::size_t pending = 0;  // members that are not complete
    Reduction reduction = {};
  };

  void take_parameters(const std::vector<Tensor>& parameters, const optim::NamedTensors& names);
  void check_same() const;
  void make_messages();
  void add_hooks();
  void release() noexcept;
  void check_unchanged() const;

  // Called by the tape.
  void check_may_add(const Parameter& p) const;
  void on_gradient(Parameter& p);
  void end_backward(bool failed);

  void mark_complete(Parameter& p);
  void send_next();
  void reduce_all();
  void hand_over_gradients();
  void begin(State state);

  std::shared_ptr<comm::ProcessGroup> group_;  // of this optimiser alone
  const DistributedOptimizerOptions options_;
  std::vector<Parameter> parameters_;  // that require a gradient
  optim::NamedTensors frozen_;         // the others
  std::vector<Message> messages_;
  ReducerStats stats_;

  mutable std::mutex mutex_;  // backward may call from the workers of several devices
  State state_ = State::collecting;
  bool in_backward_ = false;   // while reducing, and it has reached a parameter
  bool any_gradient_ = false;  // on some rank, in the last reduction
  std::size_t next_ = 0;       // message to be sent
  std::int64_t messages_sent_ = 0;
  Clock::time_point first_sent_, last_arrival_;  // of the reduction in progress
};

}  // namespace weft::parallel
