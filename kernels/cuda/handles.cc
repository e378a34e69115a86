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

/// How the handles of a library are made and, by a unique_ptr, destroyed.
struct Cudnn {
  using pointer = cudnnHandle_t;
  static void create(pointer* made) { WEFT_CUDNN(cudnnCreate(made)); }
  void operator()(pointer h) const { cudnnDestroy(h); }
};
struct CublasLt {
  using pointer = cublasLtHandle_t;
  static void create(pointer* made) { WEFT_CUBLAS(cublasLtCreate(made)); }
  void operator()(pointer h) const { cublasLtDestroy(h); }
};

/// A handle of one device.
template <class Library>
struct Handle {
  int device;
  std::unique_ptr<void, Library> owner;
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
        if (it->device != device) continue;
        Handle<Library> found = std::move(*it);
        idle.erase(it);
        return found;
      }
    }
    const AllowWhileRecording allow;
    typename Library::pointer made = nullptr;
    Library::create(&made);
    return {device, std::unique_ptr<void, Library>(made)};
  }
};

/// One thread's handles, one per device that it has used; given to the pool when the thread ends.
template <class Library>
class ThreadHandles {
 public:
  typename Library::pointer get(int device) {
    for (const auto& h : handles_) {
      if (h.device == device) return h.owner.get();
    }
    handles_.push_back(Pool<Library>::instance().take(device));
    return handles_.back().owner.get();
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
typename Library::pointer thread_handle(int device) {
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
