// What a kind of device must provide besides kernels: raw memory, copies, streams, events.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "weft/core/base/device.h"

namespace weft {

/// A queue of work on one device. `handle` belongs to the backend (cudaStream_t). CPU operations
/// run on the calling thread, so there it is always null. A value type: the Runtime owns the stream
/// itself.
struct Stream {
  Device device;
  void* handle = nullptr;
  friend bool operator==(const Stream&, const Stream&) = default;
};

/// A point in a stream. Owns the backend's event.
class Event {
 public:
  virtual ~Event() = default;
  virtual void record(const Stream& stream) = 0;
  /// Makes `stream` wait for the recorded point, without blocking the host.
  virtual void block(const Stream& stream) = 0;
  virtual bool done() const = 0;
  virtual void synchronize() = 0;
  /// Nanoseconds from `earlier` to this event. Both come from new_timing_event() of one device and
  /// are recorded and done. Throws Unsupported if the backend has no such clock.
  virtual std::int64_t elapsed_ns(const Event& earlier) const;
};

/// Work that a stream has recorded instead of running it.
class RecordedWork {
 public:
  /// Waits for the last launch.
  virtual ~RecordedWork() = default;
  /// Queues all of the work; it runs on the memory with which it was recorded.
  virtual void launch(const Stream& stream) = 0;
};

/// Properties in which devices of one kind may differ; 0: not known.
struct DeviceProperties {
  std::int64_t memory_bytes = 0;
  int compute_units = 0;  ///< streaming multiprocessors
};

/// One per kind of device, alive for the whole process. All calls are thread-safe.
class Runtime {
 public:
  virtual ~Runtime() = default;

  /// Called once per process, except on the CPU's runtime.
  virtual int device_count() = 0;
  /// Why device_count() is smaller than the machine's number, for the text of an error; empty if it
  /// is not.
  virtual std::string why_fewer_devices() { return {}; }
  virtual DeviceProperties properties(int /*device*/) { return {}; }
  /// nullptr when the device has no room; other failures throw Cuda or Library.
  virtual void* allocate(int device, std::size_t bytes) = 0;
  virtual void free(int device, void* p, std::size_t bytes) noexcept = 0;
  /// Page-locked on CUDA, plain on the CPU; nullptr when there is no room.
  virtual void* allocate_pinned(std::size_t bytes) = 0;
  virtual void free_pinned(void* p) noexcept = 0;

  /// The caching allocator lends the `bytes` at `p`, a part of the memory from allocate() or
  /// allocate_pinned(), to work on `stream`. Returns the address that the borrower uses: another
  /// one on devices that check bounds.
  virtual void* lend(void* p, std::size_t /*bytes*/, const Stream& /*stream*/) { return p; }
  /// Ends a loan: the bytes may be lent again to work that is queued on `stream` from now on. For
  /// page-locked memory `stream` belongs to cpu:0, since the host itself may use it at once.
  virtual void take_back(void* /*p*/, const Stream& /*stream*/) noexcept {}

  /// Either side may be the host or a device of this runtime. Asynchronous on `stream` if the
  /// hardware allows it. Pageable host memory has been read when the call returns, pinned memory is
  /// read later.
  virtual void copy(void* dst, Device dst_device, const void* src, Device src_device,
                    std::size_t bytes, const Stream& stream) = 0;
  virtual void fill_zero(void* dst, std::size_t bytes, const Stream& stream) = 0;

  virtual Stream default_stream(int device) = 0;
  virtual Stream new_stream(int device) = 0;
  virtual void synchronize(const Stream& stream) = 0;
  virtual void synchronize_device(int device) = 0;
  virtual std::unique_ptr<Event> new_event(int device) = 0;
  /// An event that stores the time when it passed, which costs the device a little time. Throws
  /// Unsupported if the backend has none.
  virtual std::unique_ptr<Event> new_timing_event(int device);

  /// Whether streams can record; if not, the functions below throw Internal.
  virtual bool can_record() const { return false; }
  /// Whether someone, weft or other code, records what is queued on `stream`.
  virtual bool is_recording(const Stream& /*stream*/) { return false; }
  /// From here on the calling thread's work on `stream` is recorded and not run. Not for default
  /// streams.
  virtual void begin_recording(const Stream& stream);
  virtual std::unique_ptr<RecordedWork> end_recording(const Stream& stream);
  /// Replaces end_recording after an error.
  virtual void abandon_recording(const Stream& stream) noexcept;
  /// Writes up to kMaxWords words to device memory, in the order of the stream; `words` may be
  /// changed as soon as the call returns.
  static constexpr std::size_t kMaxWords = 256;
  virtual void write_words(std::uint64_t* to, std::span<const std::uint64_t> words,
                           const Stream& stream);
};

/// Called once by the backend that provides the runtime, before its first use; nullptr if there is
/// none.
void register_runtime(DeviceType type, Runtime* runtime);
/// Registers a function that finds the runtime at its first use, once: find() returns it, or null
/// and the reason.
void register_runtime_finder(DeviceType type, Runtime* (*find)(std::string& reason));
/// Throws Device if there is no such device: "[cuda:0] ... this build has no CUDA", "... 2 devices
/// are visible", or why an existing one is not used.
Runtime& runtime(Device device);
/// Does not throw: 0 if the kind has no runtime or no device.
int device_count(DeviceType type);

}  // namespace weft
