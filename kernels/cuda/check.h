// Every call of the CUDA runtime and its libraries goes through one of these macros, so that a
// failure says which call, what the library calls it, on which device and where.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "weft/core/error.h"
#include "weft/core/runtime.h"
#include "weft/kernels/cuda/libraries.h"

namespace weft::cuda {

[[noreturn]] void throw_status(cudaError_t status, const char* call, const char* file, int line);
[[noreturn]] void throw_status(cublasStatus_t status, const char* call, const char* file, int line);
[[noreturn]] void throw_status(cudnnStatus_t status, const char* call, const char* file, int line);

/// For destructors and noexcept functions: a warning through the thread's log sink, no exception.
void log_status(cudaError_t status, const char* call, const char* file, int line) noexcept;

/// True while work on the stream is being recorded into a graph: nothing may wait or allocate then.
bool capturing(const Stream& stream);

inline cudaStream_t handle(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.handle);
}

/// Makes `device` the calling thread's, and leaves it so: to put another one back would make a
/// context on that one, too (since CUDA 12), half a gigabyte on a GPU that other ranks may own.
/// Costs one thread-local read when it already is.
void use_device(int device);
/// The last device that any thread made its own, or -1.
int device_in_use();

/// The GPU's own number, the same in every process of the machine.
std::string gpu_id(int device);

/// Allows the calling thread, for a scope, what CUDA forbids while one of its streams records
/// because it might wait for that stream: getting and giving back memory, making library handles.
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

/// WEFT_CUDA where nothing may be thrown.
#define WEFT_CUDA_LOG(call)                                              \
  do {                                                                   \
    const cudaError_t weft_status_ = (call);                             \
    if (weft_status_ != cudaSuccess) [[unlikely]]                        \
      ::weft::cuda::log_status(weft_status_, #call, __FILE__, __LINE__); \
  } while (0)
