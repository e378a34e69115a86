#include "weft/core/runtime/external_stream.h"

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

#include "weft/core/base/error.h"
#include "weft/core/runtime/index_reports.h"
#include "weft/core/runtime/log.h"

namespace weft {
namespace {

constexpr const char* kOp = "external_stream";

struct StreamEnds {
  std::mutex mutex;
  std::size_t count = 0;
  void (*f[8])(const Stream&) noexcept = {};
};
constinit StreamEnds stream_ends;

// cudaStreamLegacy is 1 and cudaStreamPerThread is 2, another stream in each thread.
bool is_default(const void* stream) { return reinterpret_cast<std::uintptr_t>(stream) <= 2; }

}  // namespace

ExternalStream::ExternalStream(Device device, void* stream) : stream_{device, stream} {
  WEFT_CHECK(device.is_cuda(), Device, kOp, "device: got ", device, ", expected a CUDA device");
  Runtime& cuda = runtime(device);
  WEFT_CHECK(!is_default(stream), InvalidArgument, kOp,
             "stream: got one of CUDA's default streams, expected one that the program has made; "
             "without a StreamScope weft's work is on the null stream anyway");
  // Not by an event: asking for one that is captured spoils the program's capture.
  WEFT_CHECK(!cuda.is_recording(stream_), InvalidArgument, kOp,
             "stream: got one that is being captured");
  const auto event = cuda.new_event(device.index);
  try {
    event->record(stream_);
  } catch (const Error& error) {
    WEFT_THROW(Device, kOp, "stream: got one of another device, expected one of ", device, " (",
               error.what(), ')');
  }
}

ExternalStream::~ExternalStream() {
  try {
    const OwnWait own;
    runtime(stream_.device).synchronize(stream_);
  } catch (const Error& error) {
    log_warning(error.what());
  }
  detail::free_blocks_of(stream_);
  const std::lock_guard lock(stream_ends.mutex);
  for (std::size_t i = 0; i < stream_ends.count; ++i) stream_ends.f[i](stream_);
}

void detail::at_stream_end(void (*f)(const Stream&) noexcept) {
  const std::lock_guard lock(stream_ends.mutex);
  WEFT_CHECK(stream_ends.count < std::size(stream_ends.f), Internal, kOp, "too many listeners");
  stream_ends.f[stream_ends.count++] = f;
}

}  // namespace weft
