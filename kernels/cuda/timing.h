// Choosing among candidates by running them.
#pragma once

#include <cstddef>
#include <functional>

#include "weft/core/runtime.h"

namespace weft::cuda {

/// Zeroed device memory for a trial on one stream, straight from the driver: it must show neither
/// in the allocator's statistics nor as an OutOfMemory of the user's. data() is null when the
/// device has no room.
class TrialMemory {
 public:
  TrialMemory(const Stream& stream, std::size_t bytes);
  TrialMemory(TrialMemory&& other) noexcept;
  TrialMemory& operator=(TrialMemory&& other) noexcept;
  ~TrialMemory();
  char* data() const { return data_; }

 private:
  int device_ = 0;
  char* data_ = nullptr;
};

/// Milliseconds `run` takes on the stream, the best of a few, after one that does not count.
/// Infinity when run returns false: the candidate does not work here.
double time_ms(const Stream& stream, const std::function<bool()>& run);

/// The device whose memory p points to. Plans are asked for with views alone, see kernels/conv.h.
int device_of(const void* p);

}  // namespace weft::cuda
