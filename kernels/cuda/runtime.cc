#include "weft/kernels/cuda/runtime.h"

#include <cmath>
#include <mutex>
#include <string>
#include <vector>

#include "weft/core/runtime/capture.h"
#include "weft/core/runtime/index_reports.h"
#include "weft/core/runtime/log.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/kernels/cuda/check.h"
#include "weft/kernels/cuda/gpus.h"

namespace weft::cuda {
namespace {

void check_may_wait() {
  graph::check_not_capturing("synchronize", "a stream that records has nothing to wait for");
}

// Events without times, kept for reuse: one copy between devices needs several. An event for which
// streams still wait may be recorded again: they wait for the point that it had when the wait was
// queued.
class SpareEvents {
 public:
  cudaEvent_t take(int device) {
    const std::lock_guard lock(mutex_);
    std::vector<cudaEvent_t>& spare = spare_[device];
    if (spare.empty()) {
      spare.reserve(static_cast<std::size_t>(made_[device]) + 1);  // room for all of them
      cudaEvent_t event = nullptr;
      WEFT_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
      ++made_[device];
      return event;
    }
    const cudaEvent_t event = spare.back();
    spare.pop_back();
    return event;
  }
  void give_back(int device, cudaEvent_t event) noexcept {
    const std::lock_guard lock(mutex_);
    spare_[device].push_back(event);
  }

 private:
  std::mutex mutex_;
  std::vector<cudaEvent_t> spare_[kMaxDevices];
  int made_[kMaxDevices] = {};
};

// Never destroyed: static objects may contain events.
SpareEvents& spare_events() {
  static SpareEvents* const events = new SpareEvents;
  return *events;
}

class CudaEvent final : public Event {
 public:
  CudaEvent(int device, bool timing) : device_(device), timing_(timing) {
    use_device(device);
    if (timing) {
      WEFT_CUDA(cudaEventCreateWithFlags(&event_, cudaEventDefault));
    } else {
      event_ = spare_events().take(device);
    }
  }
  ~CudaEvent() override {
    if (timing_) {
      use_some_device();
      WEFT_CUDA_LOG(cudaEventDestroy(event_));
    } else {
      spare_events().give_back(device_, event_);
    }
  }

  void record(const Stream& stream) override {
    // CUDA refuses an event of another device; this error names weft's devices.
    WEFT_CHECK(stream.device == Device(DeviceType::cuda, device_), Device, "event",
               "made for cuda:", device_, ", recorded on ", to_string(stream.device));
    use_device(device_);
    WEFT_CUDA(cudaEventRecord(event_, handle(stream)));
  }

  // The waiting stream may belong to another device.
  void block(const Stream& stream) override {
    use_device(stream.device.index);
    WEFT_CUDA(cudaStreamWaitEvent(handle(stream), event_, 0));
  }

  bool done() const override {
    use_device(device_);
    const AllowWhileRecording allow;
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) {
      // Otherwise it stays the thread's last error and is found after the next launch.
      cudaGetLastError();
      return false;
    }
    WEFT_CUDA(status);
    return true;
  }

  void synchronize() override {
    check_may_wait();
    use_device(device_);
    WEFT_CUDA(cudaEventSynchronize(event_));
    report_bad_indices();
  }

  std::int64_t elapsed_ns(const Event& earlier) const override {
    use_device(device_);
    float ms = 0;
    WEFT_CUDA(cudaEventElapsedTime(&ms, static_cast<const CudaEvent&>(earlier).event_, event_));
    return std::llround(ms * 1e6);
  }

 private:
  int device_;
  bool timing_;
  cudaEvent_t event_ = nullptr;
};

}  // namespace

// Without a GPU or a driver a CUDA build works like a CPU build. GPUs that cannot be used are
// skipped, too, but with a warning.
int CudaRuntime::device_count() {
  const Gpus& found = gpus();
  if (!found.why_fewer.empty()) {
    log_warning(found.why_fewer);
  } else if (found.status != cudaSuccess && found.status != cudaErrorNoDevice &&
             found.status != cudaErrorInsufficientDriver) {
    log_status(found.status, "counting the GPUs", __FILE__, __LINE__);
  }
  return static_cast<int>(found.used.size());
}

std::string CudaRuntime::why_fewer_devices() { return gpus().why_fewer; }

DeviceProperties CudaRuntime::properties(int device) {
  cudaDeviceProp found;
  WEFT_CUDA(cudaGetDeviceProperties(&found, cuda_number(device)));
  return {static_cast<std::int64_t>(found.totalGlobalMem), found.multiProcessorCount};
}

void* CudaRuntime::allocate(int device, std::size_t bytes) {
  use_device(device);
  const AllowWhileRecording allow;
  void* p = nullptr;
  const cudaError_t status = cudaMalloc(&p, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  WEFT_CUDA(status);
  return p;
}

// cudaFree finds the memory's device from the address.
void CudaRuntime::free(int, void* p, std::size_t) noexcept {
  const AllowWhileRecording allow;
  WEFT_CUDA_LOG(cudaFree(p));
}

void* CudaRuntime::allocate_pinned(std::size_t bytes) {
  // The memory belongs to some device's context. Of a thread whose device is no GPU, `allow` uses
  // one that the process has anyway.
  if (const Device device = thread_state().device; device.is_cuda()) use_device(device.index);
  const AllowWhileRecording allow;
  void* p = nullptr;
  const cudaError_t status = cudaHostAlloc(&p, bytes, cudaHostAllocPortable);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  WEFT_CUDA(status);
  return p;
}

void CudaRuntime::free_pinned(void* p) noexcept {
  const AllowWhileRecording allow;
  WEFT_CUDA_LOG(cudaFreeHost(p));
}

#ifdef WEFT_EMULATED_CUDA
void* CudaRuntime::lend(void* p, std::size_t bytes, const Stream& stream) {
  const int device = stream.device.is_cuda() ? cuda_number(stream.device.index) : -1;
  return ::emulator::lend(p, bytes, device, handle(stream));
}

void CudaRuntime::take_back(void* p, const Stream& stream) noexcept {
  const int device = stream.device.is_cuda() ? cuda_number(stream.device.index) : -1;
  ::emulator::take_back(p, device, handle(stream));
}
#endif

void CudaRuntime::connect(int from, int to) {
  const std::lock_guard lock(mutex_);
  if (!connected_.insert({from, to}).second) return;
  int can = 0;
  WEFT_CUDA(cudaDeviceCanAccessPeer(&can, cuda_number(from), cuda_number(to)));
  if (!can) return;
  use_device(from);
  const cudaError_t status = cudaDeviceEnablePeerAccess(cuda_number(to), 0);
  if (status == cudaErrorPeerAccessAlreadyEnabled) {  // other code of this process has enabled it
    cudaGetLastError();
    return;
  }
  WEFT_CUDA(status);
}

namespace {

/// Whether the copy may still read the host memory after the call. A copy from pageable memory
/// normally does not, but for a GPU that accesses such memory directly (HMM, ATS) this is not
/// guaranteed.
bool may_read_later(int device, const void* src) {
  int pageable_access = 0;
  WEFT_CUDA(cudaDeviceGetAttribute(&pageable_access, cudaDevAttrPageableMemoryAccess,
                                   cuda_number(device)));
  if (!pageable_access) return false;
  cudaPointerAttributes attributes{};
  WEFT_CUDA(cudaPointerGetAttributes(&attributes, src));
  return attributes.type == cudaMemoryTypeUnregistered;
}

}  // namespace

void CudaRuntime::copy(void* dst, Device dst_device, const void* src, Device src_device,
                       std::size_t bytes, const Stream& stream) {
  if (bytes == 0) return;
  WEFT_CHECK(stream.device.is_cuda(), Internal, "copy", "the stream must be a CUDA device's, got ",
             to_string(stream.device));
  if (dst_device.is_cuda() && src_device.is_cuda() && dst_device.index != src_device.index) {
    connect(src_device.index, dst_device.index);
    connect(dst_device.index, src_device.index);
    use_device(stream.device.index);
    WEFT_CUDA(cudaMemcpyPeerAsync(dst, cuda_number(dst_device.index), src,
                                  cuda_number(src_device.index), bytes, handle(stream)));
    return;
  }
  use_device(stream.device.index);
  const cudaMemcpyKind kind =
      dst_device.is_cuda()
          ? (src_device.is_cuda() ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice)
          : (src_device.is_cuda() ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost);
  WEFT_CUDA(cudaMemcpyAsync(dst, src, bytes, kind, handle(stream)));
  if (kind == cudaMemcpyHostToDevice && may_read_later(stream.device.index, src)) {
    WEFT_CUDA(cudaStreamSynchronize(handle(stream)));
  }
}

void CudaRuntime::fill_zero(void* dst, std::size_t bytes, const Stream& stream) {
  if (bytes == 0) return;
  use_device(stream.device.index);
  WEFT_CUDA(cudaMemsetAsync(dst, 0, bytes, handle(stream)));
}

Stream CudaRuntime::default_stream(int device) {
  return Stream{Device(DeviceType::cuda, device), nullptr};
}

Stream CudaRuntime::new_stream(int device) {
  use_device(device);
  cudaStream_t stream = nullptr;
  WEFT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return Stream{Device(DeviceType::cuda, device), stream};
}

void CudaRuntime::synchronize(const Stream& stream) {
  check_may_wait();
  use_device(stream.device.index);
  WEFT_CUDA(cudaStreamSynchronize(handle(stream)));
  report_bad_indices();
}

void CudaRuntime::synchronize_device(int device) {
  check_may_wait();
  use_device(device);
  WEFT_CUDA(cudaDeviceSynchronize());
  report_bad_indices();
}

std::unique_ptr<Event> CudaRuntime::new_event(int device) {
  return std::make_unique<CudaEvent>(device, false);
}

std::unique_ptr<Event> CudaRuntime::new_timing_event(int device) {
  return std::make_unique<CudaEvent>(device, true);
}

CudaRuntime& cuda_runtime() {
  static CudaRuntime* const runtime = new CudaRuntime;
  return *runtime;
}

}  // namespace weft::cuda
