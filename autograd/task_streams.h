// In which stream each task of a backward runs. Private to autograd/.
#pragma once

#include "weft/autograd/discovery.h"
#include "weft/autograd/session.h"
#include "weft/core/runtime/streams.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/tensor/tensor.h"

namespace weft::autograd {

/// A rule runs in the stream of its forward, and a gradient follows it there. On the CPU this class
/// does nothing.
class TaskStreams {
 public:
  /// To be called when a backward begins on this thread.
  void begin(const Session& session, bool for_grad) {
    caller_ = CurrentStreams::of_this_thread();
    // Gradients of leaves are added in the streams of the thread that called the outermost
    // backward, even if the rule that started this backward runs in another stream.
    leaves_ = for_grad ? &caller_ : &session.streams();
  }

  Stream of(const Task& task, Device device) const {
    return device.is_cpu() ? Stream{device} : of_cuda(task, device);
  }
  /// The stream in which the thread that called the backward reads results.
  Stream caller(Device device) const { return caller_.on(device); }

  /// Whether `to` is not the thread's current stream, in which x was made.
  static bool changes(const Tensor& x, const Stream& to) {
    return to.device.is_cuda() && x.defined() && !thread_state().capture &&
           current_stream(to.device) != to;
  }
  /// Work queued on `to` from now on runs after the work in the current stream that made x.
  static void hand_over(const Tensor& x, const Stream& to) {
    if (changes(x, to)) hand_over_cuda(x, to);
  }
  /// The same for a gradient that its receiver may overwrite.
  static void give_away(Tensor& x, const Stream& to) {
    if (changes(x, to)) give_away_cuda(x, to);
  }

 private:
  Stream of_cuda(const Task& task, Device device) const;
  static void hand_over_cuda(const Tensor& x, const Stream& to);
  static void give_away_cuda(Tensor& x, const Stream& to);

  CurrentStreams caller_;
  const CurrentStreams* leaves_ = nullptr;
};

}  // namespace weft::autograd
