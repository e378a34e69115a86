#include "weft/core/trace/trace_device.h"

#include <algorithm>

#include "weft/core/runtime/index_reports.h"

namespace weft::detail {
namespace {

constexpr std::int64_t kAnchorEveryNs = 4'000'000'000;
constexpr std::size_t kMaxPending = 512;  // the most spans whose events are kept

}  // namespace

DeviceTimes::PerDevice& DeviceTimes::of(Device device) {
  const auto found = std::ranges::find(devices_, device, &PerDevice::device);
  if (found != devices_.end()) return *found;
  PerDevice& fresh = devices_.emplace_back();
  fresh.device = device;
  return fresh;
}

std::shared_ptr<Event> DeviceTimes::take(PerDevice& d) {
  if (d.free.empty()) return runtime(d.device).new_timing_event(d.device.index);
  std::shared_ptr<Event> event = std::move(d.free.back());
  d.free.pop_back();
  return event;
}

void DeviceTimes::anchor(PerDevice& d, const Stream& stream, std::unique_lock<std::mutex>& lock) {
  if (!d.anchors.empty() && now_() - d.anchors.back().host_ns < kAnchorEveryNs) return;
  Anchor fresh{take(d), 0, -1};
  fresh.event->record(stream);
  if (d.anchors.empty()) {
    // Without the lock: the device may wait for work that another thread has to queue.
    lock.unlock();
    const OwnWait own;
    fresh.event->synchronize();
    fresh.ns = now_();
    lock.lock();
    if (!d.anchors.empty()) return d.free.push_back(std::move(fresh.event));
  }
  fresh.host_ns = now_();
  d.anchors.push_back(std::move(fresh));
}

Event* DeviceTimes::begin(Device device) {
  const Stream stream = current_stream(device);
  std::unique_lock lock(mutex_);
  PerDevice& d = of(device);
  anchor(d, stream, lock);
  std::shared_ptr<Event> event = take(d);
  event->record(stream);
  d.open.emplace_back(std::move(event), d.anchors.size() - 1);
  return d.open.back().first.get();
}

void DeviceTimes::end(Event* begin, const TraceRecord& record) {
  const Stream stream = current_stream(record.device);
  std::lock_guard lock(mutex_);
  PerDevice& d = of(record.device);
  const auto opened =
      std::ranges::find(d.open, begin, [](const auto& entry) { return entry.first.get(); });
  Work work{record, stream, std::move(opened->first), take(d), opened->second};
  d.open.erase(opened);
  work.end->record(stream);
  d.pending.push_back(std::move(work));
  while (d.pending.size() > kMaxPending && !missing(d)) resolve_front(d);
}

std::shared_ptr<Event> DeviceTimes::missing(PerDevice& d) {
  const Work& work = d.pending.front();
  if (!work.end->done()) return work.end;
  for (std::size_t i = 0; i <= work.anchor; ++i) {
    const Anchor& anchor = d.anchors[i];
    if (anchor.ns < 0 && !anchor.event->done()) return anchor.event;
  }
  return nullptr;
}

void DeviceTimes::resolve_front(PerDevice& d) {
  Work work = std::move(d.pending.front());
  d.pending.pop_front();
  for (std::size_t i = 1; i <= work.anchor; ++i) {
    const Anchor& before = d.anchors[i - 1];
    Anchor& anchor = d.anchors[i];
    if (anchor.ns < 0) anchor.ns = before.ns + anchor.event->elapsed_ns(*before.event);
  }
  const Anchor& anchor = d.anchors[work.anchor];
  work.record.begin_ns = anchor.ns + work.begin->elapsed_ns(*anchor.event);
  work.record.end_ns = work.record.begin_ns + work.end->elapsed_ns(*work.begin);
  d.done.emplace_back(work.record, work.stream);
  d.free.push_back(std::move(work.begin));
  d.free.push_back(std::move(work.end));
}

void DeviceTimes::for_each(const std::function<void(const TraceRecord&, const Stream&)>& f) {
  std::unique_lock lock(mutex_);
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    PerDevice& d = devices_[i];
    const std::size_t so_far = d.done.size() + d.pending.size();
    while (d.done.size() < so_far && !d.pending.empty()) {
      if (const std::shared_ptr<Event> event = missing(d)) {
        lock.unlock();  // as in anchor()
        const OwnWait own;
        event->synchronize();
        lock.lock();
      } else {
        resolve_front(d);
      }
    }
    for (const auto& [record, stream] : d.done) f(record, stream);
  }
}

}  // namespace weft::detail
