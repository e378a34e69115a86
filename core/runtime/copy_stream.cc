#include "weft/core/runtime/copy_stream.h"

#include <atomic>
#include <mutex>

#include "weft/core/base/error.h"

namespace weft {
namespace {

using Handles = std::atomic<void*>[kMaxDevices];
constinit Handles copy_handles, upload_handles;
constinit std::mutex making;

Stream made_once(Handles& of, const char* op, Device device) {
  Runtime& cuda = runtime(device);
  WEFT_CHECK(device.is_cuda(), Device, op, "expected a CUDA device, got ", device);
  std::atomic<void*>& handle = of[device.index];
  if (!handle.load(std::memory_order_acquire)) {
    const std::lock_guard lock(making);
    if (!handle.load()) handle = cuda.new_stream(device.index).handle;
  }
  return {device, handle.load(std::memory_order_acquire)};
}

}  // namespace

Stream copy_stream(Device device) { return made_once(copy_handles, "copy_stream", device); }
Stream upload_stream(Device device) { return made_once(upload_handles, "upload_stream", device); }

void wait_for_copies(const Stream& stream) {
  if (!stream.device.is_cuda()) return;
  const int index = stream.device.index;
  void* const handle = copy_handles[index].load(std::memory_order_acquire);
  if (!handle) return;
  const auto queued = runtime(stream.device).new_event(index);
  queued->record({stream.device, handle});
  queued->block(stream);
}

}  // namespace weft
