// Every call of the CUDA runtime and of the CUDA libraries goes through one of these macros. The
// error then names the call, the library's status, the device, and the file and line.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "weft/core/base/error.h"
#include "weft/core/runtime/runtime.h"
#include "weft/kernels/cuda/libraries.h"

namespace weft::cuda {

/// Throws OutOfMemory for cudaErrorMemoryAllocation, else Cuda; for cuBLAS and cuDNN, Library.
[[noreturn]] void throw_status(cudaError_t status, const char* call, const char* file, int line);
[[noreturn]] void throw_status(cublasStatus_t status, const char* call, const char* file, int line);
[[noreturn]] void throw_status(cudnnStatus_t status, const char* call, const char* file, int line);

/// For destructors and noexcept functions: logs a warning to the thread's log sink and throws
/// nothing.
void log_status(cudaError_t status, const char* call, const char* file, int line) noexcept;

/// Whether work on the stream is being recorded into a CUDA graph. Nothing may wait for the stream
/// then. Makes its device current.
bool capturing(const Stream& stream);

inline cudaStream_t handle(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.handle);
}

/// Makes `device` the current device of the calling thread. It does not restore the previous one
/// later: since CUDA 12 that would make a context there, too, half a gigabyte on a GPU that may
/// belong to another rank. If `device` is already current, the call costs one thread-local read.
void use_device(int device);
/// For calls that need no particular device: a thread that has not called use_device() yet gets the
/// device of the last such call in any thread. CUDA would otherwise make a context on the first
/// GPU.
void use_some_device() noexcept;

/// The UUID of the GPU, as hexadecimal digits: the same in every process.
std::string gpu_id(int device);

/// For a scope, allows the calling thread to allocate and free memory, to make library handles and
/// to query events while a stream records: its own, or one that another library records globally.
/// By default CUDA refuses these calls, because they might wait for that stream, and invalidates
/// the recording. Calls use_some_device() first, since the permission needs a device, too.
class AllowWhileRecording {
 public:
  AllowWhileRecording() noexcept { exchange(); }
  ~AllowWhileRecording() { exchange(); }
  AllowWhileRecording(const AllowWhileRecording&) = delete;
  AllowWhileRecording& operator=(const AllowWhileRecording&) = delete;

 private:
  void exchange() noexcept;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // the thread's own during the scope
};

}  // namespace weft::cuda

#define WEFT_CUDA_CHECK_(call, success)                                    \
  do {                                                                     \
    const auto weft_status_ = (call);                                      \
    if (weft_status_ != (success)) [[unlikely]]                            \
      ::weft::cuda::throw_status(weft_status_, #call, __FILE__, __LINE__); \
  } while (0)

#define WEFT_CUDA(call) WEFT_CUDA_CHECK_(call, cudaSuccess)
#define WEFT_CUBLAS(call) WEFT_CUDA_CHECK_(call, CUBLAS_STATUS_SUCCESS)
#define WEFT_CUDNN(call) WEFT_CUDA_CHECK_(call, CUDNN_STATUS_SUCCESS)

/// Like WEFT_CUDA, for places that must not throw.
#define WEFT_CUDA_LOG(call)                                              \
  do {                                                                   \
    const cudaError_t weft_status_ = (call);                             \
    if (weft_status_ != cudaSuccess) [[unlikely]]                        \
      ::weft::cuda::log_status(weft_status_, #call, __FILE__, __LINE__); \
  } while (0)
