#include "weft/comm/device_tensors.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "weft/comm/work.h"
#include "weft/core/error.h"
#include "weft/core/thread_state.h"
#include "weft/core/worker.h"
#include "weft/tensor/creation.h"

namespace weft::comm {
namespace {

// Streams that nobody owns now: a runtime keeps those it has made for good.
struct SpareStreams {
  std::mutex mutex;
  std::vector<Stream> streams;

  static SpareStreams& instance() {
    static auto* const spare = new SpareStreams;
    return *spare;
  }
};

// As many numbers in page-locked memory, which `stream` uses; nothing of an undefined tensor.
Tensor on_host(const Tensor& x, const Stream& stream) {
  if (!x.defined()) return {};
  const auto memory = Storage::allocate_pinned(buffer_of(x).bytes());
  memory->record_stream(stream);
  const Shape shape{x.numel()};
  return as_strided(memory, x.dtype(), shape, contiguous_strides(shape), 0);
}

void queue_copy(const Tensor& to, const Tensor& from, const Stream& stream) {
  const Tensor& there = to.device().is_cuda() ? to : from;
  there.storage()->record_stream(stream);
  runtime(stream.device)
      .copy(to.raw_data(), to.device(), from.raw_data(), from.device(), buffer_of(to).bytes(),
            stream);
}

}  // namespace

std::shared_ptr<Event> event_here(Device device) {
  std::shared_ptr<Event> event = runtime(device).new_event(device.index);
  event->record(current_stream(device));
  return event;
}

void wait_for(const Event& event, Device device, const Deadline& deadline) {
  if (spin_until([&] { return event.done(); })) return;
  while (!event.done()) {
    WEFT_CHECK(!deadline.passed(), Timeout, "process_group", "the work on ", device,
               " that this operation has to wait for is not done");
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

SideStream::SideStream(Device device) {
  auto& [mutex, streams] = SpareStreams::instance();
  const std::lock_guard lock(mutex);
  const auto found = std::ranges::find(streams, device, &Stream::device);
  if (found == streams.end()) {
    stream_ = runtime(device).new_stream(device.index);
  } else {
    stream_ = *found;
    streams.erase(found);
  }
}

SideStream::~SideStream() {
  auto& [mutex, streams] = SpareStreams::instance();
  const std::lock_guard lock(mutex);
  try {
    streams.insert(streams.begin(), stream_);
  } catch (const std::bad_alloc&) {  // nobody finds it again
  }
}

void Staging::run(const Operation& operation, Backend& backend, const Deadline& deadline) {
  const Device device = operation.part().device();
  const Stream& stream = streams_.try_emplace(device.index, device).first->second.get();
  operation.ready->block(stream);
  Operation staged = operation;
  staged.x = on_host(operation.x, stream);
  staged.y = on_host(operation.y, stream);
  if (staged.x.defined()) queue_copy(staged.x, operation.x, stream);
  const std::shared_ptr<Event> event = runtime(device).new_event(device.index);
  event->record(stream);
  wait_for(*event, device, deadline);

  staged.run(staged, backend, deadline);

  if (operation.y.defined()) {
    queue_copy(operation.y, staged.y, stream);
  } else if (operation.writes_x) {
    queue_copy(operation.x, staged.x, stream);
  }
  event->record(stream);
  operation.work->event = event;
  operation.work->device = device;
}

}  // namespace weft::comm
