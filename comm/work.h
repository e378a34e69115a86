// The state to which a Work is a handle. Private to comm/.
#pragma once

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>

#include "weft/comm/process_group.h"
#include "weft/core/runtime/cores.h"
#include "weft/core/runtime/runtime.h"

namespace weft::comm {

struct Work::State {
  /// Wakes all waiting threads; null: success.
  void finish(std::exception_ptr failed_by) noexcept;

  const int process = fork_count();  // whose thread runs it
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::exception_ptr error;
  /// For tensors on a CUDA device: the results are there after this event. Set before finish().
  std::shared_ptr<Event> event;
  Device device;
};

}  // namespace weft::comm
