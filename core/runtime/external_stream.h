// A CUDA stream of the program itself, for weft's work.
//
//   const ExternalStream external(Device(DeviceType::cuda, 0), stream);  // a cudaStream_t
//   const StreamScope scope(external.get());
//   ... what this thread computes is queued there, behind the program's own work ...
#pragma once

#include "weft/core/runtime/runtime.h"

namespace weft {

/// Lends a stream that the program has made to weft, as torch.cuda.ExternalStream does. The program
/// keeps the stream, and destroys it after this object.
class ExternalStream {
 public:
  /// `stream`: a cudaStream_t of `device`. Throws Device if `device` is no CUDA device of this
  /// process or the stream is of another one, and InvalidArgument for CUDA's default streams (null,
  /// cudaStreamLegacy, cudaStreamPerThread), and for a stream that is being captured.
  ExternalStream(Device device, void* stream);
  /// Waits for the work on the stream, and frees what weft keeps for it: the scratch memory of
  /// kernels, and the free blocks of the allocator, of which whole segments go back to the driver
  /// and parts of others to the default stream. (Handles of cuBLASLt and cuDNN belong to threads,
  /// not to streams.) Tensors that were made on the stream live on, and so do captured steps. Such
  /// tensors then count as made on the default stream: for work on any other one, also one that
  /// gets the same handle, call record_stream() before they are freed. No thread may have it as its
  /// current stream any more, and no backward may follow of what was recorded on it. Not inside
  /// graph::capture. A failure of the device is logged.
  ~ExternalStream();
  ExternalStream(const ExternalStream&) = delete;
  ExternalStream& operator=(const ExternalStream&) = delete;

  const Stream& get() const { return stream_; }

 private:
  Stream stream_;
};

namespace detail {

/// From now on f(stream) is called when weft must forget a stream, whose work is done. At most 8.
void at_stream_end(void (*f)(const Stream& stream) noexcept);
/// The caching allocator's part of it (core/runtime/allocator.cc).
void free_blocks_of(const Stream& stream) noexcept;

}  // namespace detail
}  // namespace weft
