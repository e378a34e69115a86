// The current streams of a thread, for another thread that does its work.
#pragma once

#include <cstdint>

#include "weft/core/base/device.h"
#include "weft/core/runtime/runtime.h"

namespace weft {

/// The calling thread's current stream of each CUDA device (core/runtime/thread_state.h:
/// current_stream).
struct CurrentStreams {
  std::uint64_t known = 0;  ///< bit i: handles[i] is set; else it is the runtime's default stream
  void* handles[kMaxDevices] = {};

  static const CurrentStreams& of_this_thread();
  /// The stream of that device. Throws Device if there is no such CUDA device.
  Stream on(Device device) const;
};
static_assert(kMaxDevices == 64, "one bit of `known` per device");

/// Swaps in another thread's streams and puts the old ones back.
class StreamsGuard {
 public:
  explicit StreamsGuard(const CurrentStreams& streams);
  ~StreamsGuard();
  StreamsGuard(const StreamsGuard&) = delete;
  StreamsGuard& operator=(const StreamsGuard&) = delete;

 private:
  bool swapped_;
  CurrentStreams saved_;  // empty if neither side knows a stream
};

}  // namespace weft
