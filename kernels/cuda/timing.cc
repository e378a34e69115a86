#include "weft/kernels/cuda/timing.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "weft/core/allocator.h"
#include "weft/core/error.h"
#include "weft/core/thread_state.h"
#include "weft/kernels/cuda/check.h"
#include "weft/kernels/cuda/launch.h"
#include "weft/kernels/cuda/runtime.h"

namespace weft::cuda {
namespace {

constexpr int kTimedRuns = 5;

class TimingEvent {
 public:
  TimingEvent() { WEFT_CUDA(cudaEventCreate(&event_)); }
  ~TimingEvent() { WEFT_CUDA_LOG(cudaEventDestroy(event_)); }
  TimingEvent(const TimingEvent&) = delete;
  TimingEvent& operator=(const TimingEvent&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

TrialMemory::TrialMemory(const Stream& stream, std::size_t bytes) : device_(stream.device.index) {
  data_ = static_cast<char*>(cuda_runtime().allocate(device_, bytes));
  if (!data_) {
    release_cached_memory(stream.device);
    data_ = static_cast<char*>(cuda_runtime().allocate(device_, bytes));
  }
  // Zeros rather than what was there: NaNs and denormals can change the speed.
  if (data_) cuda_runtime().fill_zero(data_, bytes, stream);
}

TrialMemory::TrialMemory(TrialMemory&& other) noexcept
    : device_(other.device_), data_(std::exchange(other.data_, nullptr)) {}

TrialMemory& TrialMemory::operator=(TrialMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  return *this;
}

TrialMemory::~TrialMemory() {
  if (data_) cuda_runtime().free(device_, data_, 0);
}

double time_ms(const Stream& stream, const std::function<bool()>& run) {
  use_device(stream.device.index);
  TimingEvent begin, end;
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i <= kTimedRuns; ++i) {
    WEFT_CUDA(cudaEventRecord(begin.get(), handle(stream)));
    if (!run()) {
      cudaGetLastError();  // what made it fail is no later kernel's fault
      return std::numeric_limits<double>::infinity();
    }
    WEFT_CUDA(cudaEventRecord(end.get(), handle(stream)));
    WEFT_CUDA(cudaEventSynchronize(end.get()));
    float ms = 0;
    WEFT_CUDA(cudaEventElapsedTime(&ms, begin.get(), end.get()));
    if (i > 0) best = std::min<double>(best, ms);  // the first loads code
  }
  return best;
}

std::string machine(int device) {
  cudaDeviceProp properties{};
  WEFT_CUDA(cudaGetDeviceProperties(&properties, device));
  return detail::concat(properties.name, ", ", properties.multiProcessorCount,
                        " multiprocessors, cuDNN ", cudnnGetVersion(), ", cuBLASLt ",
                        cublasLtGetVersion());
}

std::string_view why_not_timed(int device) {
  if (thread_state().deterministic) return "deterministic rule";
  // What a stream records does not run, so nobody can wait for it.
  if (capturing(current_stream(Device(DeviceType::cuda, device)))) return "the stream is recording";
  return {};
}

std::size_t choose(const ChoiceProblem& problem, std::string_view why_not,
                   const std::function<std::vector<Measured>()>& times) {
  std::string_view why = "timed";
  std::vector<Measured> measured;
  std::size_t best = 0;
  if (problem.candidates.size() <= 1) {
    why = "only candidate";
  } else if (!why_not.empty()) {
    why = why_not;
  } else if (const auto remembered = remembered_choice(problem)) {
    why = "remembered on disk";
    measured = {*remembered};
    const auto& names = problem.candidates;
    best = static_cast<std::size_t>(std::find(names.begin(), names.end(), remembered->name) -
                                    names.begin());
  } else {
    measured = times();
    if (measured.empty()) why = "too big to time";
    for (std::size_t i = 1; i < measured.size(); ++i) {
      if (measured[i].ms < measured[best].ms) best = i;
    }
    if (!measured.empty()) remember_choice(problem, measured[best]);
  }
  log_choice(problem, problem.candidates[best], why, measured);
  return best;
}

int device_of(const void* p) {
  if (device_count(DeviceType::cuda) == 1) return 0;
  if (p) {
    cudaPointerAttributes attributes{};
    WEFT_CUDA(cudaPointerGetAttributes(&attributes, p));
    if (attributes.type == cudaMemoryTypeDevice) return attributes.device;
  }
  const Device current = thread_state().device;
  return current.is_cuda() ? current.index : 0;
}

}  // namespace weft::cuda
