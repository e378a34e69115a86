// Library handles and small scratch memory. Both are made once and reused.
#pragma once

#include <cstddef>
#include <mutex>

#include "weft/kernels/cuda/check.h"
#include "weft/kernels/cuda/launch_size.h"

namespace weft::cuda {

// The device must be current (use_device) here and in the calls that take the handle.

/// The calling thread's cuDNN handle for the stream's device, set to the stream. Two threads may
/// not use one cuDNN handle at the same time. Throws Library.
cudnnHandle_t cudnn_handle(const Stream& stream);
/// The same without setting a stream, for calls that queue no work.
cudnnHandle_t cudnn_handle(int device);

/// The calling thread's cuBLASLt handle for a device. Its calls take the stream as an argument.
/// Throws Library.
cublasLtHandle_t cublas_handle(int device);

/// kScratchBytes of device memory, one block per stream, for results between two kernels of one
/// operation. It is made at first use and kept as long as the stream
/// (core/runtime/external_stream.h: else for the life of the process). Work of one stream is
/// ordered, and two streams never share the memory. A thread must hold it until all work that reads
/// it is queued: threads may share a stream, and a kernel that another thread queues in between
/// would overwrite the result. Throws OutOfMemory.
inline constexpr std::size_t kScratchBytes = 16 << 10;
class Scratch {
 public:
  explicit Scratch(const Stream& stream);
  void* data() const { return data_; }

 private:
  std::unique_lock<std::mutex> lock_;
  void* data_;
};

/// kBlockCounters zeros in device memory, one array per stream, kept as the scratch memory is. A
/// kernel counts its blocks there and leaves zeros behind (comes_last), so the stream's next kernel
/// may do the same. Throws OutOfMemory.
unsigned* block_counters(const Stream& stream);

}  // namespace weft::cuda
