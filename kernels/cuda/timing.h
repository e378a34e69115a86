// Timing of candidates on a GPU.
#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <vector>

#include "weft/core/runtime/runtime.h"
#include "weft/kernels/plan/choices.h"

namespace weft::cuda {

/// Zeroed device memory for a trial on one stream. It comes directly from the driver, so that it
/// does not appear in the allocator's statistics or cause an OutOfMemory error.
class TrialMemory {
 public:
  /// Throws std::bad_alloc if the device has no room; with `drop_cache` the allocator first gives
  /// back what it keeps.
  TrialMemory(const Stream& stream, std::size_t bytes, bool drop_cache = true);
  ~TrialMemory();
  TrialMemory(const TrialMemory&) = delete;
  TrialMemory& operator=(const TrialMemory&) = delete;
  char* data() const { return data_; }

 private:
  int device_ = 0;
  char* data_ = nullptr;
};

/// Whether a library's relu is as weft's, by a trial; unknown until one is wanted and there is
/// memory for the trial.
enum class Answer { unknown, no, yes };

/// After so many trials without an answer it is no, since each makes the driver look for memory in
/// vain. Before the first one fails, the allocator gives back what it keeps.
constexpr int kTrials = 3;

/// A stream in which a communication library runs kernels, while this lives. They take
/// multiprocessors and memory's bandwidth from what runs beside them.
class CommunicationStream {
 public:
  explicit CommunicationStream(const Stream& stream);
  ~CommunicationStream();
  CommunicationStream(const CommunicationStream&) = delete;
  CommunicationStream& operator=(const CommunicationStream&) = delete;

  /// The library queues work only while it holds one. Waits while candidates are timed.
  std::shared_lock<std::shared_mutex> may_queue() const;

 private:
  Stream stream_;
};

/// While it lives and is() is true, no communication of this process runs on the device, and none
/// begins.
class Quiet {
 public:
  /// Does not wait: is() is false if something queued in the communication streams has not ended.
  explicit Quiet(int device);
  bool is() const { return lock_.owns_lock(); }

 private:
  std::unique_lock<std::shared_mutex> lock_;
};

/// Waits until a Quiet is one, but no longer than 100 ms: a message can wait for another rank, and
/// that one for this. Without the turn to time (ChoiceProblem::before), which that one may need.
void wait_for_quiet(int device);

/// Milliseconds that the device takes for the work that run() queues on the stream, without the
/// time that the host takes to queue it. It is the least of three means; each is over up to 32 runs
/// that wait in the queue together. Infinity if run() returns false: the candidate does not work
/// here. The stream's device must be current. Throws Cuda.
double time_ms(const Stream& stream, const std::function<bool()>& run);

/// Names the GPU and the libraries. Choices are remembered for this combination.
std::string machine(int device);

/// The reason why candidates may not be timed now; empty if they may.
std::string_view why_not_timed(int device);

/// The index of the device whose memory p points to; for a null p, of the thread's device. Needed
/// because a plan is requested with views alone (kernels/conv.h).
int device_of(const void* p);

}  // namespace weft::cuda
