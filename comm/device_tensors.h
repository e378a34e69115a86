// Operations on tensors of CUDA devices, by backends that work on host memory. Private to comm/.
#pragma once

#include <map>
#include <memory>

#include "weft/comm/operation.h"
#include "weft/core/runtime.h"

namespace weft::comm {

/// An event that is recorded now in the calling thread's current stream of a CUDA device.
std::shared_ptr<Event> event_here(Device device);

/// Returns when the device has come to the event. Throws Timeout when it has not by the deadline:
/// the driver's own wait has none.
void wait_for(const Event& event, Device device, const Deadline& deadline);

/// A stream beside those that programs use, of one owner at a time.
class SideStream {
 public:
  explicit SideStream(Device device);
  ~SideStream();
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

  const Stream& get() const { return stream_; }

 private:
  Stream stream_;
};

/// Carries an operation's tensors through page-locked host memory.
///
///   caller's stream   ... x is made | event                              wait()'s stream | event
///   ... side stream                       wait, copy x to the host   copy back | event host wait
///   ........ backend
class Staging {
 public:
  /// Runs the operation on copies of its tensors, with a stream of its own. Returns when the
  /// results are queued on their way back; operation.work says how to wait for them.
  void run(const Operation& operation, Backend& backend, const Deadline& deadline);

 private:
  std::map<int, SideStream> streams_;  // by device
};

}  // namespace weft::comm
