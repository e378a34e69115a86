// Choosing among candidates by running them.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/core/runtime.h"
#include "weft/kernels/choices.h"

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

/// Milliseconds the device takes for what `run` queues on the stream, however long the host takes
/// to queue it: the least of three means, each of many runs that wait in the queue together.
/// Infinity when run returns false: the candidate does not work here. The stream's device is
/// current.
double time_ms(const Stream& stream, const std::function<bool()>& run);

/// The GPU and the libraries whose choices are remembered together.
std::string machine(int device);

/// Why plans are not to be chosen by timing now; empty when they are.
std::string_view why_not_timed(int device);

/// The place among problem.candidates of the one to take: of two or more the remembered one, else
/// the fastest by times(), which measures each, in order, or none where there is no memory to do
/// so; else the first. `why_not`, when not empty, rules out both.
std::size_t choose(const ChoiceProblem& problem, std::string_view why_not,
                   const std::function<std::vector<Measured>()>& times);

/// The device whose memory p points to. Plans are asked for with views alone, see kernels/conv.h.
int device_of(const void* p);

}  // namespace weft::cuda
