// The time that work takes on a device, by events in its streams. Private to core/.
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
  /// now(): the host's time that spans are given in.
  explicit DeviceTimes(std::function<std::int64_t()> now) : now_(std::move(now)) {}

  /// An event recorded in the thread's current stream of the device; null where none is to be had.
  Event* begin(Device device);
  /// Records the end, in the stream that is current now.
  void end(Event* begin, const TraceRecord& record);
  /// f(record, stream) for all spans so far, with the times of the device. Waits for it, while
  /// others may go on giving it work.
  void for_each(const std::function<void(const TraceRecord&, const Stream&)>& f);

 private:
  // Events tell how long after another they came, as a float of milliseconds: a new point to count
  // from every few seconds keeps that exact to half a microsecond.
  struct Anchor {
    std::shared_ptr<Event> event;
    std::int64_t host_ns;  // when it was recorded
    std::int64_t ns;       // when it passed; -1: not looked at
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
    std::vector<std::pair<std::shared_ptr<Event>, std::size_t>> open;  // begun, and their anchor
    std::deque<Work> pending;
    std::vector<std::pair<TraceRecord, Stream>> done;
  };

  PerDevice& of(Device device);
  std::shared_ptr<Event> take(PerDevice& d);
  void anchor(PerDevice& d, const Stream& stream, std::unique_lock<std::mutex>& lock);
  // What the oldest span still waits for; null: nothing.
  std::shared_ptr<Event> missing(PerDevice& d);
  void resolve_front(PerDevice& d);

  std::function<std::int64_t()> now_;
  std::mutex mutex_;
  std::deque<PerDevice> devices_;
};

}  // namespace weft::detail
