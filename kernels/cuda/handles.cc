#include "weft/kernels/cuda/handles.h"

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "weft/core/runtime/external_stream.h"
#include "weft/kernels/cuda/runtime.h"

namespace weft::cuda {
namespace {

struct Cudnn {
  using type = cudnnHandle_t;
  static type create() {
    type made = nullptr;
    WEFT_CUDNN(cudnnCreate(&made));
    return made;
  }
  static void destroy(type h) noexcept { cudnnDestroy(h); }
};

struct CublasLt {
  using type = cublasLtHandle_t;
  static type create() {
    type made = nullptr;
    WEFT_CUBLAS(cublasLtCreate(&made));
    return made;
  }
  static void destroy(type h) noexcept { cublasLtDestroy(h); }
};

/// Owns one handle of one device.
template <class Library>
class Handle {
 public:
  explicit Handle(int device) : device_(device) {
    const AllowWhileRecording allow;
    handle_ = Library::create();
  }
  Handle(Handle&& other) noexcept
      : device_(other.device_), handle_(std::exchange(other.handle_, nullptr)) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Handle() {
    if (handle_) Library::destroy(handle_);
  }
  int device() const { return device_; }
  typename Library::type get() const { return handle_; }

 private:
  int device_;
  typename Library::type handle_ = nullptr;
};

/// Handles of threads that have ended, for later threads: making one takes up to a second. Never
/// destroyed, since the libraries may be shut down before it at the end of the process.
template <class Library>
struct Pool {
  std::mutex mutex;
  std::vector<Handle<Library>> idle;

  static Pool& instance() {
    static Pool* const pool = new Pool;
    return *pool;
  }

  Handle<Library> take(int device) {
    {
      const std::lock_guard lock(mutex);
      for (auto it = idle.begin(); it != idle.end(); ++it) {
        if (it->device() != device) continue;
        Handle<Library> found = std::move(*it);
        idle.erase(it);
        return found;
      }
    }
    return Handle<Library>(device);
  }
};

/// One thread's handles, one per device that it has used; given to the pool when the thread ends.
template <class Library>
class ThreadHandles {
 public:
  typename Library::type get(int device) {
    for (const auto& h : handles_) {
      if (h.device() == device) return h.get();
    }
    handles_.push_back(Pool<Library>::instance().take(device));
    return handles_.back().get();
  }

  ~ThreadHandles() {
    auto& pool = Pool<Library>::instance();
    const std::lock_guard lock(pool.mutex);
    try {
      for (auto& h : handles_) pool.idle.push_back(std::move(h));
    } catch (...) {
      // No memory for the pool's entry: the handle is destroyed with handles_.
    }
  }

 private:
  std::vector<Handle<Library>> handles_;
};

template <class Library>
typename Library::type thread_handle(int device) {
  thread_local ThreadHandles<Library> handles;
  return handles.get(device);
}

}  // namespace

cudnnHandle_t cudnn_handle(int device) { return thread_handle<Cudnn>(device); }

cudnnHandle_t cudnn_handle(const Stream& stream) {
  const cudnnHandle_t h = cudnn_handle(stream.device.index);
  WEFT_CUDNN(cudnnSetStream(h, handle(stream)));
  return h;
}

cublasLtHandle_t cublas_handle(int device) { return thread_handle<CublasLt>(device); }

namespace {

struct ScratchMemory {
  std::mutex mutex;      // locked by the Scratch that uses `data`
  void* data = nullptr;  // kScratchBytes, then the counters
};

unsigned* counters_in(void* data) {
  return reinterpret_cast<unsigned*>(static_cast<char*>(data) + kScratchBytes);
}

constexpr std::size_t kCounterBytes = kBlockCounters * sizeof(unsigned);

/// Waits for it. In a stream of its own, since that of the counters may be recording.
void zero(unsigned* counters) {
  const AllowWhileRecording allow;
  cudaStream_t stream = nullptr;
  WEFT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const std::unique_ptr<CUstream_st, decltype(&cudaStreamDestroy)> owner(stream, cudaStreamDestroy);
  WEFT_CUDA(cudaMemsetAsync(counters, 0, kCounterBytes, stream));
  WEFT_CUDA(cudaStreamSynchronize(stream));
}

struct ScratchMemories {
  std::mutex mutex;
  std::map<std::pair<int, void*>, ScratchMemory> of_stream;

  static ScratchMemories& instance() {
    static auto* const memories = [] {
      auto* const made = new ScratchMemories;
      detail::at_stream_end([](const Stream& stream) noexcept { instance().free(stream); });
      return made;
    }();
    return *memories;
  }

  ScratchMemory& of(const Stream& stream) {
    const std::lock_guard lock(mutex);
    return of_stream[{stream.device.index, stream.handle}];
  }

  void free(const Stream& stream) noexcept {
    const std::lock_guard lock(mutex);
    const auto found = of_stream.find({stream.device.index, stream.handle});
    if (found == of_stream.end()) return;
    if (found->second.data) {
      cuda_runtime().free(stream.device.index, found->second.data, kScratchBytes + kCounterBytes);
    }
    of_stream.erase(found);
  }
};

/// Must be locked.
void make(ScratchMemory& memory, const Stream& stream) {
  if (memory.data) return;
  constexpr std::size_t kBytes = kScratchBytes + kCounterBytes;
  void* const made = cuda_runtime().allocate(stream.device.index, kBytes);
  WEFT_CHECK(made, OutOfMemory, "scratch", "no ", kBytes, " bytes left on ",
             to_string(stream.device));
  try {
    zero(counters_in(made));
  } catch (...) {
    cuda_runtime().free(stream.device.index, made, kBytes);
    throw;
  }
  memory.data = made;
}

}  // namespace

Scratch::Scratch(const Stream& stream) {
  ScratchMemory& memory = ScratchMemories::instance().of(stream);
  lock_ = std::unique_lock(memory.mutex);
  make(memory, stream);
  data_ = memory.data;
}

unsigned* block_counters(const Stream& stream) {
  ScratchMemory& memory = ScratchMemories::instance().of(stream);
  const std::lock_guard lock(memory.mutex);
  make(memory, stream);
  return counters_in(memory.data);
}

}  // namespace weft::cuda
