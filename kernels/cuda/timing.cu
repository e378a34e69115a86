// Timing of candidates, the kernel that holds the device up meanwhile, and what must not run beside
// them. No kernel here reads or writes memory.
#include "weft/kernels/cuda/timing.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <new>
#include <thread>

#include "weft/core/base/error.h"
#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/kernels/cuda/check.h"
#include "weft/kernels/cuda/gpus.h"
#include "weft/kernels/cuda/launch.h"
#include "weft/kernels/cuda/runtime.h"

namespace weft::cuda {
namespace {

constexpr int kBatches = 3;
// A batch has as many runs as take about this time, but not more than these.
constexpr double kBatchMs = 0.5;
constexpr double kMostRuns = 32;
// GPUs run at 1 to 3 GHz; it does no harm to keep a queue busy for too long.
constexpr double kCyclesPerMs = 3e6;
constexpr double kMostBusyMs = 100, kFirstBusyMs = 5;
// How long a first call waits for communication, and how often it looks. Each look leaves an event
// in the queue, and a full queue would hold up the host in the driver.
constexpr std::chrono::milliseconds kPatience{100};
constexpr std::chrono::milliseconds kPause{1};
// An event need not be done at the first query, even in a stream without work.
constexpr int kQueries = 100;

__global__ void keep_busy_kernel(std::int64_t cycles) {
  const std::int64_t begin = clock64();
  while (clock64() - begin < cycles) {
  }
}

double now_ms() {
  using Ms = std::chrono::duration<double, std::milli>;
  return Ms(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The communication streams of a device.
struct Communication {
  std::shared_mutex queueing;  // shared by those who queue work, alone for those who time
  std::mutex mutex;
  std::vector<Stream> streams;  // guarded by mutex

  /// Whether all work has ended that is queued in them.
  bool idle() {
    const std::lock_guard lock(mutex);
    return std::ranges::all_of(streams, [](const Stream& stream) {
      const std::unique_ptr<Event> event = cuda_runtime().new_event(stream.device.index);
      event->record(stream);
      for (int i = 0; i < kQueries; ++i) {
        if (event->done()) return true;
      }
      return false;
    });
  }
};

Communication& communication(int device) {
  // Never destroyed, for static objects.
  static auto* const all = new Communication[device_count(DeviceType::cuda)];
  return all[device];
}

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

TrialMemory::TrialMemory(const Stream& stream, std::size_t bytes, bool drop_cache)
    : device_(stream.device.index) {
  data_ = static_cast<char*>(cuda_runtime().allocate(device_, bytes));
  if (!data_ && drop_cache) {
    release_cached_memory(stream.device);
    data_ = static_cast<char*>(cuda_runtime().allocate(device_, bytes));
  }
  if (!data_) throw std::bad_alloc();
  // Zeros, not old content: NaNs and denormals can change the speed.
  cuda_runtime().fill_zero(data_, bytes, stream);
}

TrialMemory::~TrialMemory() { cuda_runtime().free(device_, data_, 0); }

CommunicationStream::CommunicationStream(const Stream& stream) : stream_(stream) {
  Communication& all = communication(stream.device.index);
  const std::lock_guard lock(all.mutex);
  all.streams.push_back(stream);
}

CommunicationStream::~CommunicationStream() {
  Communication& all = communication(stream_.device.index);
  const std::lock_guard lock(all.mutex);
  all.streams.erase(std::ranges::find(all.streams, stream_.handle, &Stream::handle));
}

std::shared_lock<std::shared_mutex> CommunicationStream::may_queue() const {
  return std::shared_lock(communication(stream_.device.index).queueing);
}

Quiet::Quiet(int device) : lock_(communication(device).queueing, std::try_to_lock) {
  if (lock_ && !communication(device).idle()) lock_.unlock();
}

void wait_for_quiet(int device) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  // Between two looks others may queue work, which what is queued can be waiting for.
  while (!Quiet(device).is() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(kPause);
  }
}

double time_ms(const Stream& stream, const std::function<bool()>& run) {
  constexpr double kFailed = std::numeric_limits<double>::infinity();
  TimingEvent begin, end;
  double host_ms = 0;  // the host's time to queue the last batch
  const auto batch_ms = [&](int runs, double busy_ms) {
    // Keeps the device busy until the whole batch is queued; otherwise the time between runs is the
    // host's.
    launch({"keep_busy"}, stream, keep_busy_kernel, 1, 1,
           static_cast<std::int64_t>(std::min(busy_ms, kMostBusyMs) * kCyclesPerMs));
    const double before = now_ms();
    WEFT_CUDA(cudaEventRecord(begin.get(), handle(stream)));
    for (int i = 0; i < runs; ++i) {
      if (!run()) return kFailed;
    }
    WEFT_CUDA(cudaEventRecord(end.get(), handle(stream)));
    host_ms = now_ms() - before;
    WEFT_CUDA(cudaEventSynchronize(end.get()));
    float ms = 0;
    WEFT_CUDA(cudaEventElapsedTime(&ms, begin.get(), end.get()));
    return double{ms};
  };
  if (batch_ms(1, 0) == kFailed) return kFailed;  // loads code, which is slow
  const double one_ms = batch_ms(1, std::min(2 * host_ms, kFirstBusyMs));
  const int runs = static_cast<int>(std::clamp(kBatchMs / one_ms, 1.0, kMostRuns));
  const double busy_ms = 0.05 + 1.5 * runs * host_ms;
  double best = kFailed;
  for (int i = 0; i < kBatches; ++i) {
    const double ms = batch_ms(runs, busy_ms);
    if (ms == kFailed) return kFailed;
    best = std::min(best, ms / runs);
  }
  return best;
}

std::string machine(int device) {
  cudaDeviceProp properties{};
  WEFT_CUDA(cudaGetDeviceProperties(&properties, cuda_number(device)));
  return detail::concat(properties.name, ", ", properties.multiProcessorCount,
                        " multiprocessors, cuDNN ", cudnnGetVersion(), ", cuBLASLt ",
                        cublasLtGetVersion());
}

std::string_view why_not_timed(int device) {
  if (thread_state().deterministic) return "deterministic rule";
  // Work that a stream records does not run, so it cannot be timed.
  if (capturing(current_stream(Device(DeviceType::cuda, device)))) return "the stream is recording";
  // Then choices are neither timed nor remembered.
  if (!thread_state().benchmark && !thread_state().choices) return "rule";
  return {};
}

int device_of(const void* p) {
  if (device_count(DeviceType::cuda) == 1) return 0;
  if (p) {
    use_some_device();
    cudaPointerAttributes attributes{};
    WEFT_CUDA(cudaPointerGetAttributes(&attributes, p));
    if (attributes.type == cudaMemoryTypeDevice) return device_of_number(attributes.device);
  }
  const Device current = thread_state().device;
  return current.is_cuda() ? current.index : 0;
}

}  // namespace weft::cuda
