#include "weft/core/runtime/thread_state.h"

#include "weft/core/base/error.h"
#include "weft/core/runtime/streams.h"
#include "weft/core/runtime/thread_end.h"
#include "weft/core/runtime/thread_local.h"

namespace weft {
namespace detail {

constinit thread_local ThreadState* current_thread_state = nullptr;

ThreadState& make_thread_state() {
  static const ThreadEnd end([](void* kept) {
    current_thread_state = nullptr;
    delete static_cast<ThreadState*>(kept);
  });
  current_thread_state = new ThreadState;
  end.expect(current_thread_state);
  return *current_thread_state;
}

}  // namespace detail

namespace {

constinit ThreadLocal<CurrentStreams> current_streams;

Stream exchange_stream(const Stream& stream) {
  const Stream previous = current_stream(stream.device);
  if (stream.device.is_cuda()) current_streams->handles[stream.device.index] = stream.handle;
  return previous;
}

}  // namespace

const CurrentStreams& CurrentStreams::of_this_thread() { return *current_streams; }

Stream CurrentStreams::on(Device device) const {
  if (device.is_cpu()) return {device, nullptr};
  const auto index = static_cast<unsigned>(device.index);
  if (index < unsigned{kMaxDevices} && (known >> index & 1)) return {device, handles[index]};
  return runtime(device).default_stream(device.index);
}

StreamsGuard::StreamsGuard(const CurrentStreams& streams)
    : swapped_((current_streams->known | streams.known) != 0) {
  if (!swapped_) return;
  saved_ = *current_streams;
  *current_streams = streams;
}

StreamsGuard::~StreamsGuard() {
  // The work may have used a stream for the first time.
  if (swapped_ || current_streams->known != 0) *current_streams = saved_;
}

Stream current_stream(Device device) {
  if (device.is_cpu()) return {device, nullptr};
  CurrentStreams& current = *current_streams;
  const Stream stream = current.on(device);
  current.handles[device.index] = stream.handle;
  current.known |= std::uint64_t{1} << device.index;
  return stream;
}

Stream set_current_stream(const Stream& stream) {
  graph::check_not_capturing("set_current_stream",
                             "work on another stream would not be part of the step");
  return exchange_stream(stream);
}

StreamScope::StreamScope(const Stream& stream) {
  if (stream.device.is_cpu() || thread_state().capture) return;
  if (current_stream(stream.device) == stream) return;
  before_ = exchange_stream(stream);  // not refused by a trial: a capture does not come here
}

StreamScope::~StreamScope() {
  if (before_) exchange_stream(*before_);
}

}  // namespace weft
