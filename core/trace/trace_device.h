// Measures the time of work on a device, with events in its streams. Private to core/.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "weft/core/runtime/runtime.h"
#include "weft/core/trace/trace.h"

namespace weft::detail {

class DeviceTimes {
 public:
  /// now() is the host's time, as used by the spans.
  explicit DeviceTimes(std::function<std::int64_t()> now) : now_(std::move(now)) {}

  /// Records an event in the thread's current stream of the device; null if that is not possible.
  Event* begin(Device device);
  /// Records the end of the work, in the current stream.
  void end(Event* begin, const TraceRecord& record);
  /// Calls f(record, stream) for all spans so far, with times of the device. Waits for the device;
  /// other threads may go on giving it work.
  void for_each(const std::function<void(const TraceRecord&, const Stream&)>& f);

 private:
  // The time between two events is known as a float of milliseconds. A new reference event every
  // few seconds keeps that exact to half a microsecond.
  struct Anchor {
    std::shared_ptr<Event> event;
    std::int64_t host_ns;  // when it was recorded
    std::int64_t ns;       // time when it passed; -1: not known yet
  };
  struct Work {
    TraceRecord record;
    Stream stream;
    std::shared_ptr<Event> begin, end;
    std::size_t anchor;
  };
  struct PerDevice {
    Device device;
    std::vector<Anchor> anchors;
    std::vector<std::shared_ptr<Event>> free;
    std::vector<std::pair<std::shared_ptr<Event>, std::size_t>> open;  // begun spans, their anchor
    std::deque<Work> pending;
    std::vector<std::pair<TraceRecord, Stream>> done;
  };

  PerDevice& of(Device device);
  std::shared_ptr<Event> take(PerDevice& d);
  void anchor(PerDevice& d, const Stream& stream, std::unique_lock<std::mutex>& lock);
  // The first event that the oldest span still waits for; null if none.
  std::shared_ptr<Event> missing(PerDevice& d);
  void resolve_front(PerDevice& d);

  std::function<std::int64_t()> now_;
  std::mutex mutex_;
  std::deque<PerDevice> devices_;
};

}  // namespace weft::detail
