// Library handles and small scratch memory, made once and used again.
#pragma once

#include <cstddef>
#include <mutex>

#include "weft/kernels/cuda/check.h"

namespace weft::cuda {

// The device must be current (use_device), for a handle as for the calls that take it.

/// The calling thread's cuDNN handle of the stream's device, set to the stream. A cuDNN handle may
/// not be used by two threads at once.
cudnnHandle_t cudnn_handle(const Stream& stream);
/// The same without a stream, for questions that queue no work.
cudnnHandle_t cudnn_handle(int device);

/// The calling thread's cuBLASLt handle of a device; its calls take the stream as an argument.
cublasLtHandle_t cublas_handle(int device);

/// Device memory of one stream, for results between two kernels of one operation. Made at first use
/// and kept for the life of the process, like the stream;
/// two streams never share it, and within one the work is ordered. One thread at a time holds it,
/// until all that reads it is queued: threads share streams (the default one is everybody's), and
/// another thread's kernel in between would leave its own result.
inline constexpr std::size_t kScratchBytes = 16 << 10;
class Scratch {
 public:
  explicit Scratch(const Stream& stream);
  void* data() const { return data_; }

 private:
  std::unique_lock<std::mutex> lock_;
  void* data_;
};

}  // namespace weft::cuda
