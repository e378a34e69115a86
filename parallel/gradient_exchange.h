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
// A message holds several gradients, followed by one number for each, 1 if this rank has it: a 0 in
// the sum shows, without another message, that no rank has that gradient. The gradients of each
// message are chosen once, in the reverse order of the parameters, and messages are sent in this
// order. So the ranks send the same messages, though their gradients may come in different orders
// or not at all, and each run adds up in the same order, a resumed one too: a checkpoint needs
// nothing of this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/optim/optimizer.h"
#include "weft/parallel/gradient_buckets.h"
#include "weft/parallel/horovod.h"

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
  /// A message is closed at this number of bytes; 0: one for each gradient. It is also closed at an
  /// eighth of all gradients, from 1 MiB on: one that waits for the last gradient does not overlap.
  std::int64_t fusion_threshold = kFusionThreshold;
};

class GradientExchange {
 public:
  /// All ranks call it. Throws InvalidArgument for names that DistributedOptimizer refuses, and on
  /// every rank when one rank has other names, shapes or options.
  GradientExchange(const Horovod& hvd, const std::vector<Tensor>& parameters,
                   const optim::NamedTensors& names, const DistributedOptimizerOptions& options);
  /// Keeps the gradients, in memory of their own.
  ~GradientExchange();
  GradientExchange(const GradientExchange&) = delete;
  GradientExchange& operator=(const GradientExchange&) = delete;

  // The parts of DistributedOptimizer's functions of these names that exchange gradients.
  void zero_grad();
  void synchronize();
  /// Throws InvalidArgument on every rank when none has a gradient.
  void before_step();
  void after_step();

  /// The parameters of each message, in the order in which they are sent.
  std::vector<std::vector<std::string>> message_names() const { return buckets_.names(); }
  /// The number of messages sent so far.
  std::int64_t messages_sent() const { return messages_sent_; }
  /// Statistics so far: buckets are messages here, and what zero_grad() dropped counts as well.
  const ReducerStats& stats() const { return buckets_.stats(); }
  /// The traffic of this optimiser's own group, which the caller's group does not count.
  comm::Traffic traffic() const { return group_->traffic(); }

 private:
  using Clock = GradientBuckets::Clock;
  enum class State { collecting, reducing, reduced };

  void check_same() const;
  void make_messages();

  // Called by the tape.
  void check_may_add(std::size_t index) const;
  void on_gradient(std::size_t index);
  void end_backward(bool failed);

  void make_ready(std::size_t index);
  Reduction send(const Tensor& memory);
  void reduce_all();
  void hand_over_gradients();
  void begin(State state);

  std::shared_ptr<comm::ProcessGroup> group_;  // of this optimiser alone
  const DistributedOptimizerOptions options_;
  GradientBuckets buckets_;            // messages
  std::vector<Tensor> message_marks_;  // the numbers after a message's gradients
  // Per parameter:
  std::vector<Tensor> marks_;  // its number there: 1 if it has a gradient
  std::vector<int> arrivals_;  // backwards that reached it since zero_grad() or step()

  mutable std::mutex mutex_;  // backward may call from the workers of several devices
  State state_ = State::collecting;
  bool in_backward_ = false;   // only in state reducing, after backward has reached a parameter
  bool any_gradient_ = false;  // on some rank, in the last reduction
  std::int64_t messages_sent_ = 0;
  Clock::time_point last_arrival_;  // of the reduction in progress
};

}  // namespace weft::parallel
