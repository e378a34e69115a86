// Timing of candidates on a GPU, and the choice among them.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/core/runtime/runtime.h"
#include "weft/kernels/plan/choices.h"

namespace weft::cuda {

/// Zeroed device memory for a trial on one stream. It comes directly from the driver, so that it
/// does not appear in the allocator's statistics or cause an OutOfMemory error. data() is null if
/// the device has no room.
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

/// Milliseconds that the device takes for the work that run() queues on the stream, without the
/// time that the host takes to queue it. It is the least of three means; each is over up to 32 runs
/// that wait in the queue together. Infinity if run() returns false: the candidate does not work
/// here. The stream's device must be current. Throws Cuda.
double time_ms(const Stream& stream, const std::function<bool()>& run);

/// Names the GPU and the libraries. Choices are remembered for this combination.
std::string machine(int device);

/// The reason why candidates may not be timed now; empty if they may.
std::string_view why_not_timed(int device);

/// The index in problem.candidates of the candidate to take: the remembered one, else the fastest
/// by times(). It is the first if there is only one, if `why_not` is not empty, or if times()
/// returns nothing. times() measures all candidates in their order, or none if there is no memory
/// for it.
std::size_t choose(const ChoiceProblem& problem, std::string_view why_not,
                   const std::function<std::vector<Measured>()>& times);

/// The index of the device whose memory p points to; for a null p, of the thread's device. Needed
/// because a plan is requested with views alone (kernels/conv.h).
int device_of(const void* p);

}  // namespace weft::cuda
