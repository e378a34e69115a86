// Work: a handle on an operation of a group.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

#include "weft/core/runtime/cores.h"
#include "weft/core/runtime/runtime.h"

namespace weft::comm {

/// An operation that has been given to a group. A handle: copies mean the same operation. When the
/// handle is dropped, the operation goes on and keeps its tensors, but its error is lost.
class Work {
 public:
  Work() = default;

  /// Returns when the operation is done and this thread may read its result; throws its error. On
  /// CUDA the current stream waits for the result, the host only until the operation is queued.
  void wait() const;
  /// Throws Timeout if it is not done by then; the operation goes on.
  void wait(std::chrono::milliseconds timeout) const;
  /// Done or failed.
  bool done() const;

  struct State;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

/// Private to comm/.
struct Work::State {
  /// Wakes all waiting threads; `failed_by` is null for success.
  void finish(std::exception_ptr failed_by) noexcept;

  const int process = fork_count();  // the process whose thread runs it
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::exception_ptr error;
  /// For tensors on a CUDA device: the results are ready after this event. Set before finish().
  std::shared_ptr<Event> event;
  Device device;
};

}  // namespace weft::comm
