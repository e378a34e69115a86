#include "weft/core/runtime/runtime.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>

#include "weft/core/base/error.h"

namespace weft {
namespace {

struct Entry {
  std::atomic<Runtime*> runtime{nullptr};
  std::atomic<Runtime* (*)(std::string&)> find{nullptr};  // null: called, or not needed
  std::atomic<int> devices{-1};  // queried once: the driver's answer is slow and does not change
};
constinit Entry entries[2];

Entry& entry(DeviceType type) { return entries[static_cast<int>(type)]; }

// Why there is no CUDA runtime: the reason from its finder.
constinit std::atomic<const std::string*> found_reason{nullptr};

std::string reason() {
  const std::string* const text = found_reason.load(std::memory_order_acquire);
  return text && !text->empty() ? *text : "this build has no CUDA";
}

// Takes no lock: find() may wait for a lock of the dynamic linker. Threads that call this at once
// all search, and find the same.
Runtime* find_runtime(DeviceType type) {
  Entry& mine = entry(type);
  if (Runtime* const known = mine.runtime.load(std::memory_order_acquire)) [[likely]]
    return known;
  auto find = mine.find.load(std::memory_order_acquire);
  if (!find) return mine.runtime.load(std::memory_order_acquire);
  auto why = std::make_unique<std::string>();
  Runtime* const found = find(*why);
  if (!found) {
    const std::string* none = nullptr;
    if (found_reason.compare_exchange_strong(none, why.get(), std::memory_order_acq_rel)) {
      static_cast<void>(why.release());  // never freed
    }
  }
  Runtime* nothing = nullptr;
  mine.runtime.compare_exchange_strong(nothing, found, std::memory_order_acq_rel);
  mine.find.compare_exchange_strong(find, nullptr, std::memory_order_acq_rel);
  return mine.runtime.load(std::memory_order_acquire);
}

[[noreturn]] void throw_no_recording() {
  WEFT_THROW(Internal, "graph", "streams of this device cannot record");
}

[[noreturn]] void throw_no_timing() {
  WEFT_THROW(Unsupported, "event", "events of this device do not know when they passed");
}

}  // namespace

std::int64_t Event::elapsed_ns(const Event&) const { throw_no_timing(); }
std::unique_ptr<Event> Runtime::new_timing_event(int) { throw_no_timing(); }
void Runtime::begin_recording(const Stream&) { throw_no_recording(); }
std::unique_ptr<RecordedWork> Runtime::end_recording(const Stream&) { throw_no_recording(); }
void Runtime::abandon_recording(const Stream&) noexcept {}
// For memory of the host, whose streams do not wait.
void Runtime::write_words(std::uint64_t* to, std::span<const std::uint64_t> words, const Stream&) {
  std::ranges::copy(words, to);
}

void register_runtime(DeviceType type, Runtime* runtime) {
  entry(type).devices.store(-1, std::memory_order_relaxed);
  entry(type).find.store(nullptr, std::memory_order_relaxed);
  entry(type).runtime.store(runtime, std::memory_order_release);
}

void register_runtime_finder(DeviceType type, Runtime* (*find)(std::string& reason)) {
  entry(type).find.store(find, std::memory_order_release);
}

Runtime& runtime(Device device) {
  Runtime* const found = find_runtime(device.type);
  const int count = device_count(device.type);
  if (device.index >= 0 && device.index < count) [[likely]]
    return *found;
  if (device.is_cpu()) {
    WEFT_CHECK(found, Internal, to_string(device), "no CPU backend is linked into this program");
    WEFT_THROW(Device, to_string(device), "no such device: got index ", device.index, ", ", count,
               count == 1 ? " CPU device exists" : " CPU devices exist",
               " (a program's --host-devices, or WEFT_HOST_DEVICES, sets their number)");
  }
  WEFT_CHECK(found, Device, to_string(device), "no such device: ", reason());
  const std::string why = found->why_fewer_devices();
  WEFT_CHECK(count > 0 || !why.empty(), Device, to_string(device),
             "no such device: no CUDA device is visible (no GPU, no driver, or hidden by "
             "CUDA_VISIBLE_DEVICES)");
  WEFT_CHECK(count > 0, Device, to_string(device), "no such device: ", why);
  WEFT_THROW(Device, to_string(device), "no such device: ", count,
             count == 1 ? " device is visible" : " devices are visible", why.empty() ? "" : "; ",
             why);
}

int device_count(DeviceType type) {
  Runtime* const found = find_runtime(type);
  if (!found) return 0;
  if (type == DeviceType::cpu) return host_device_count();
  int count = entry(type).devices.load(std::memory_order_relaxed);
  if (count < 0) {  // no lock: the query may call the log sink
    count = std::min(found->device_count(), kMaxDevices);
    entry(type).devices.store(count, std::memory_order_relaxed);
  }
  return count;
}

}  // namespace weft
