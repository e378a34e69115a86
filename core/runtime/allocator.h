// Caching allocator: one per device, free lists per stream, so that a steady training step makes no
// driver call.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "weft/core/base/device.h"
#include "weft/core/base/intrusive_ptr.h"
#include "weft/core/base/memory_owner.h"
#include "weft/core/runtime/pool.h"
#include "weft/core/runtime/runtime.h"

namespace weft {

struct MemoryStats {
  std::int64_t in_use_bytes = 0;        ///< of live storages, each rounded up to 512 B
  std::int64_t peak_in_use_bytes = 0;   ///< highest in_use_bytes since reset_peak_memory()
  std::int64_t cached_bytes = 0;        ///< taken from the driver and in no storage
  std::int64_t driver_allocations = 0;  ///< calls of the driver's (or the system's) allocator
  std::int64_t driver_frees = 0;
  /// By MemoryOwner. The sum of the first is in_use_bytes. The sum of the second is
  /// peak_in_use_bytes: it is what each owner had at that peak. The third is the most that each
  /// owner ever had since reset_peak_memory(), which may be at another time.
  std::array<std::int64_t, kMemoryOwners> in_use_by_owner = {};
  std::array<std::int64_t, kMemoryOwners> peak_by_owner = {};
  std::array<std::int64_t, kMemoryOwners> most_by_owner = {};
};

/// Hears of each change of MemoryStats::in_use_by_owner that its threads make:
/// ThreadState::memory points to it.
class MemoryObserver {
 public:
  /// `owner` now has so many bytes of the device. Must not allocate or free device memory.
  virtual void memory_changed(Device device, MemoryOwner owner,
                              std::int64_t in_use_bytes) noexcept = 0;

 protected:
  ~MemoryObserver() = default;
};

/// Statistics of one device. Page-locked memory (Storage::allocate_pinned with CUDA) counts for no
/// device. These five functions throw Device if there is no such device.
MemoryStats memory_stats(Device device);
void reset_peak_memory(Device device);
/// A storage that would raise in_use_bytes above the limit is refused; 0: no limit. The free memory
/// of captured steps, which only they can use, counts as in use. Cached blocks are given back to
/// the driver before the device would exceed the limit. Useful for virtual CPU devices and for
/// sharing a GPU. Throws InvalidArgument for bytes < 0.
void set_memory_limit(Device device, std::int64_t bytes);
/// 0: no limit.
std::int64_t memory_limit(Device device);
/// Gives cached blocks back to the driver, except those of captured steps (graph::Step::reset).
/// Throws Unsupported inside graph::capture.
void release_cached_memory(Device device);

/// "4.00 MiB", for messages: the next lower hundredth of the largest of B, KiB, MiB, GiB and TiB
/// that is no more than `bytes`.
std::string readable_bytes(std::size_t bytes);

/// Sets the number of virtual CPU devices (host_device_count()). Throws InvalidArgument for n
/// outside [1, kMaxDevices], or if a device that would be removed still holds memory.
void set_host_devices(int n);

/// For tests of running out of memory: refuses the k-th non-empty storage that any thread allocates
/// on `device` from now on (1: the next), once. One object at a time per device.
class FailAllocation {
 public:
  FailAllocation(Device device, std::int64_t k);
  ~FailAllocation();
  FailAllocation(const FailAllocation&) = delete;
  FailAllocation& operator=(const FailAllocation&) = delete;
  /// Whether the k-th allocation has happened.
  bool fired() const;

 private:
  Device device_;
};

namespace detail {
struct Block;
struct StreamLists;
}  // namespace detail

class Storage;

/// Memory of one device from which only its owner gets storages: a step of graph::capture, whose
/// replays use the same addresses again and again. Storages may outlive it.
class MemoryPool {
 public:
  /// Makes a pool on the stream's device. `stream` orders the work on the memory. Before the pool
  /// asks the driver for more, it takes over the free memory of `from`, a stream of the same
  /// device: work on the pool's memory must be ordered after what is queued there.
  MemoryPool(const Stream& stream, const Stream& from);
  /// Gives the free memory back: whole segments to the driver, parts of others to `from`, and the
  /// rest when its storages are destroyed. All work queued on the memory must be done by then.
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  bool owns(const Storage& storage) const;

 private:
  friend class Storage;
  detail::StreamLists* lists_;
};

/// Decides where a thread's storages are allocated: ThreadState::pools; null: the cache for all.
class PoolChoice {
 public:
  /// Null: the cache. Throws Unsupported for a device on which nothing may be allocated.
  virtual const MemoryPool* pool_for(Device device) const = 0;

 protected:
  ~PoolChoice() = default;
};

/// A block of device memory with an owner count and a version, shared by a tensor and its views.
class Storage final : public RefCounted, public Pooled {
 public:
  /// Uninitialised, 64-byte aligned (256 on CUDA), from the caching allocator of `device`, tied to
  /// the calling thread's current stream there. 0 bytes are legal: data() is then not null but must
  /// not be read. Throws OutOfMemory with the device, the bytes asked for and in use, and the
  /// limit; then nothing has changed, except that cached blocks may have gone back to the driver.
  /// Inside graph::capture: from the captured step's pool.
  static intrusive_ptr<Storage> allocate(Device device, std::size_t bytes);
  /// Wraps memory that the caller owns and keeps alive: a bucket, an mmap. `release(context)` runs
  /// when the last tensor that uses it is destroyed; it may be null and must not throw.
  static intrusive_ptr<Storage> borrow(Device device, void* data, std::size_t bytes,
                                       void (*release)(void*) = nullptr, void* context = nullptr);
  /// Sets what borrow() takes as `release`, once nothing can fail any more.
  void set_release(void (*function)(void*), void* context) {
    release_ = function;
    release_context_ = context;
  }
  /// Counts borrowed memory as allocate() counts its own: for the device, the thread's MemoryOwner
  /// and the limit. Throws OutOfMemory.
  void charge();
  /// Host memory from which a CUDA device can copy without blocking, cached like device memory;
  /// without CUDA normal memory of cpu:0.
  static intrusive_ptr<Storage> allocate_pinned(std::size_t bytes);
  ~Storage() override;

  /// Gives the memory back until restore(): for values that can be had again, such as a parameter
  /// whose parts lie on other ranks. data() then throws InvalidArgument with `why`, which must live
  /// that long. Memory of 0 bytes stays. Throws InvalidArgument for memory with another owner, and
  /// Unsupported inside graph::capture.
  void release(const char* why);
  bool released() const { return released_ != nullptr; }
  /// Allocates as allocate() for the same size. The values are undefined; the version stays.
  void restore();

  void* data() const {
    if (released_) [[unlikely]]
      throw_released();
    return data_;
  }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  bool pinned() const { return pinned_; }
  /// False for memory with another owner (borrow), and if empty.
  bool owned() const { return block_ != nullptr; }

  /// From now on the memory counts for this owner (MemoryStats). Does nothing for borrowed memory
  /// that does not count.
  void set_owner(MemoryOwner owner);

  /// Counts in-place writes; autograd compares it to catch a changed saved tensor.
  std::uint32_t version() const { return version_.load(std::memory_order_relaxed); }
  /// Must be called before an in-place write is queued: the thread's current stream then waits for
  /// copies to other devices that still read the memory. Throws InvalidArgument if read_only().
  void bump_version() {
    if (before_write_.load(std::memory_order_relaxed)) [[unlikely]]
      prepare_write();
    version_.fetch_add(1, std::memory_order_relaxed);
  }
  /// Whether in-place writes throw: another library shares the memory, but only for reading.
  bool read_only() const { return before_write_.load(std::memory_order_relaxed) & kReadOnly; }
  void set_read_only() { before_write_.fetch_or(kReadOnly, std::memory_order_relaxed); }

  /// Says that `stream` uses the block, too: when the storage is destroyed, the block is not reused
  /// before the work that is then queued on `stream` is done. Does nothing for CPU streams and
  /// borrowed memory. Throws Unsupported inside graph::capture.
  void record_stream(const Stream& stream);
  /// Must be called before a copy to another CUDA device is queued, which reads the memory on
  /// copy_stream(device()). Like record_stream(), and the next bump_version() waits for the copy.
  void record_copy();

 private:
  friend class MemoryPool;
  void prepare_write();
  void take_block();
  [[noreturn]] void throw_released() const;
  Storage(Device device, void* data, std::size_t bytes)
      : data_(data), bytes_(bytes), device_(device) {}

  void* data_;
  std::size_t bytes_;
  Device device_;
  bool pinned_ = false;
  std::atomic<std::uint32_t> version_{0};
  // What bump_version() must look at: read_only(), copies that no write has waited for yet.
  static constexpr std::uint8_t kReadOnly = 1, kCopiedAway = 2;
  std::atomic<std::uint8_t> before_write_{0};
  detail::Block* block_ = nullptr;  // of the allocator; null if empty or borrowed
  void (*release_)(void*) = nullptr;
  void* release_context_ = nullptr;
  const char* released_ = nullptr;         // why, while it is
  std::optional<MemoryOwner> charged_to_;  // of borrowed memory that counts
};

}  // namespace weft
