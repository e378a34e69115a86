#include "weft/core/thread_state.h"

#include "weft/core/capture.h"

namespace weft {
namespace detail {

constinit thread_local ThreadState current_thread_state;

}  // namespace detail

namespace {

// The calling thread's stream on each CUDA device; a bit in `known` says that the entry is set.
struct CurrentStreams {
  std::uint64_t known = 0;
  void* handles[kMaxDevices] = {};
};
static_assert(kMaxDevices == 64, "one bit of `known` per device");
constinit thread_local CurrentStreams current_streams;

}  // namespace

Stream current_stream(Device device) {
  if (device.is_cpu()) return {device, nullptr};
  const auto index = static_cast<unsigned>(device.index);
  if (index < unsigned{kMaxDevices} && (current_streams.known >> index & 1)) {
    return {device, current_streams.handles[index]};
  }
  const Stream stream = runtime(device).default_stream(device.index);
  current_streams.handles[index] = stream.handle;
  current_streams.known |= std::uint64_t{1} << index;
  return stream;
}

Stream set_current_stream(const Stream& stream) {
  graph::check_not_capturing("set_current_stream",
                             "work on another stream would not be part of the step");
  const Stream previous = current_stream(stream.device);
  if (stream.device.is_cuda()) current_streams.handles[stream.device.index] = stream.handle;
  return previous;
}

void log_info(std::string_view message) {
  if (LogSink* log = thread_state().log) log->write(LogSink::Level::info, message);
}

void log_warning(std::string_view message) {
  if (LogSink* log = thread_state().log) log->write(LogSink::Level::warning, message);
}

}  // namespace weft
