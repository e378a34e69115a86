#include "weft/kernels/cuda/check.h"

#include <atomic>
#include <string>

#include "weft/core/runtime/log.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/kernels/cuda/gpus.h"

namespace weft::cuda {
namespace {

constinit std::atomic<int> in_use = -1;          // set last, in any thread
constinit thread_local bool has_device = false;  // use_device() has set this thread's

std::string current_device() {
  int number = 0;
  if (cudaGetDevice(&number) != cudaSuccess) {
    cudaGetLastError();
    return "no device";
  }
  const int device = device_of_number(number);
  return device < 0 ? detail::concat("GPU ", number) : to_string(Device(DeviceType::cuda, device));
}

/// The text of all failures: "[cudnn] cudnnSetStream(..) failed: CUDNN_STATUS_.. on cuda:0".
std::string describe(const char* call, const std::string& message) {
  return detail::concat(call, " failed: ", message, " on ", current_device());
}

std::string message_of(cudaError_t status) {
  return detail::concat(cudaGetErrorName(status), " (", cudaGetErrorString(status), ")");
}

}  // namespace

void throw_status(cudaError_t status, const char* call, const char* file, int line) {
  // A failed call also leaves its status as the thread's last error. Clear it: the next launch
  // would find it and blame the wrong kernel.
  cudaGetLastError();
  throw Error(status == cudaErrorMemoryAllocation ? ErrorCode::OutOfMemory : ErrorCode::Cuda,
              "cuda", describe(call, message_of(status)), file, line);
}

// The libraries have their own CUDA runtime, with its own last error.
void throw_status(cublasStatus_t status, const char* call, const char* file, int line) {
  throw Error(ErrorCode::Library, "cublas",
              describe(call, detail::concat(cublasLtGetStatusName(status), " (",
                                            cublasLtGetStatusString(status), ")")),
              file, line);
}

void throw_status(cudnnStatus_t status, const char* call, const char* file, int line) {
  char detail_text[512] = "";
  cudnnGetLastErrorString(detail_text, sizeof detail_text);
  throw Error(ErrorCode::Library, "cudnn",
              describe(call, detail::concat(cudnnGetErrorString(status), " (", detail_text, ")")),
              file, line);
}

void log_status(cudaError_t status, const char* call, const char* file, int line) noexcept {
  cudaGetLastError();
  // At the end of the process the driver, and its memory, may be gone before the last tensor.
  if (status == cudaErrorCudartUnloading) return;
  try {
    log_warning(detail::concat(describe(call, message_of(status)), " at ", file, ":", line));
  } catch (...) {
    // There is no way left to report the error.
  }
}

bool capturing(const Stream& stream) {
  use_device(stream.device.index);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  WEFT_CUDA(cudaStreamIsCapturing(handle(stream), &status));
  return status != cudaStreamCaptureStatusNone;
}

// It only fails if every call fails, as without a driver: then the following call reports the
// error.
void AllowWhileRecording::exchange() noexcept {
  use_some_device();
  if (cudaThreadExchangeStreamCaptureMode(&mode_) != cudaSuccess) cudaGetLastError();
}

void use_device(int device) {
  int current = 0;
  WEFT_CUDA(cudaGetDevice(&current));
  const int number = cuda_number(device);
  if (current != number) WEFT_CUDA(cudaSetDevice(number));
  has_device = true;
  if (in_use.load(std::memory_order_relaxed) != device) {
    in_use.store(device, std::memory_order_relaxed);
  }
}

// As in exchange(), the following call reports an error.
void use_some_device() noexcept {
  const int device = in_use.load(std::memory_order_relaxed);
  if (has_device || device < 0) return;
  if (cudaSetDevice(cuda_number(device)) != cudaSuccess) cudaGetLastError();
  has_device = true;
}

std::string gpu_id(int device) {
  cudaDeviceProp properties{};
  WEFT_CUDA(cudaGetDeviceProperties(&properties, cuda_number(device)));
  std::string text;
  for (const char byte : properties.uuid.bytes) {
    for (const int shift : {4, 0}) text += "0123456789abcdef"[byte >> shift & 15];
  }
  return text;
}

}  // namespace weft::cuda
