// Caching allocator: one per device, free lists per stream, so that a steady training step makes no
// driver call.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "weft/core/base/device.h"
#include "weft/core/base/intrusive_ptr.h"
#include "weft/core/base/memory_owner.h"
#include "weft/core/runtime/pool.h"
#include "weft/core/runtime/runtime.h"

namespace weft {

struct MemoryStats {
  std::int64_t in_use_bytes = 0;        ///< of live storages, each rounded up to 512 B
  std::int64_t peak_in_use_bytes = 0;   ///< highest in_use_bytes since reset_peak_memory()
  std::int64_t cached_bytes = 0;        ///< taken from the driver, but in no storage
  std::int64_t driver_allocations = 0;  ///< calls of the driver's (or the system's) allocator
  std::int64_t driver_frees = 0;
  /// By MemoryOwner; they add up to in_use_bytes, and to peak_in_use_bytes when that was reached.
  std::array<std::int64_t, kMemoryOwners> in_use_by_owner = {};
  std::array<std::int64_t, kMemoryOwners> peak_by_owner = {};
};

/// Of one device; page-locked memory (Storage::allocate_pinned with CUDA) counts for no device.
/// These five functions throw Device when there is no such device.
MemoryStats memory_stats(Device device);
void reset_peak_memory(Device device);
/// A storage that would take in_use_bytes above the limit is refused; 0: no limit. The free memory
/// of captured steps, which only they can use, counts as in use. Cached blocks go back to the
/// driver before they would take the device above it. For virtual CPU devices and for sharing a
/// GPU. Throws InvalidArgument for bytes < 0.
void set_memory_limit(Device device, std::int64_t bytes);
/// 0: none.
std::int64_t memory_limit(Device device);
/// Gives cached blocks back to the driver, but not those of captured steps (graph::Step::reset).
/// Throws Unsupported inside graph::capture.
void release_cached_memory(Device device);

/// Sets the number of virtual CPU devices (host_device_count()). Throws InvalidArgument for n
/// outside [1, kMaxDevices], or when a device that would go still holds memory.
void set_host_devices(int n);

/// For tests of running out of memory: refuses the k-th non-empty storage allocated on `device`
/// from now on (1: the next), once, in whichever thread. One object at a time per device.
class FailAllocation {
 public:
  FailAllocation(Device device, std::int64_t k);
  ~FailAllocation();
  FailAllocation(const FailAllocation&) = delete;
  FailAllocation& operator=(const FailAllocation&) = delete;
  /// Whether the k-th allocation has come.
  bool fired() const;

 private:
  Device device_;
};

namespace detail {
struct Block;
struct StreamLists;
}  // namespace detail

class Storage;

/// Memory of one device that only its owner gets storages from: the steps of graph::capture, whose
/// replays use the same addresses again and again. Storages may outlive it.
class MemoryPool {
 public:
  /// On the stream's device. `stream` orders the work on the memory. Before the driver is asked for
  /// more, the pool takes over what is free on `from`, a stream of the same device: work on the
  /// pool's memory must be ordered behind what is queued there.
  MemoryPool(const Stream& stream, const Stream& from);
  /// Gives the free memory back, whole segments to the driver and parts of others to `from`, and
  /// the rest when its storages die. Work queued on the memory must be done by then.
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  bool owns(const Storage& storage) const;

 private:
  friend class Storage;
  detail::StreamLists* lists_;
};

/// Which memory a thread's storages are made in: ThreadState::pools, null for the cache of all.
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
  /// Memory that the caller owns and keeps alive: a bucket, an mmap. `release(context)` runs when
  /// the last tensor lets go of it; it may be null and must not throw.
  static intrusive_ptr<Storage> borrow(Device device, void* data, std::size_t bytes,
                                       void (*release)(void*) = nullptr, void* context = nullptr);
  /// Host memory a CUDA device can copy from without blocking, cached like device memory; plain
  /// memory of cpu:0 without CUDA.
  static intrusive_ptr<Storage> allocate_pinned(std::size_t bytes);
  ~Storage() override;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  bool pinned() const { return pinned_; }
  /// False for memory that somebody else owns (borrow), and when empty.
  bool owned() const { return block_ != nullptr; }

  /// From now on the memory counts as this owner's (MemoryStats). Does nothing for borrowed memory.
  void set_owner(MemoryOwner owner);

  /// Counts in-place writes; autograd compares it to catch a changed saved tensor.
  std::uint32_t version() const { return version_.load(std::memory_order_relaxed); }
  /// To be called before a write in place is queued: the thread's current stream then waits for
  /// copies to other devices that still read the memory.
  void bump_version() {
    version_.fetch_add(1, std::memory_order_relaxed);
    if (copied_away_.load(std::memory_order_relaxed)) [[unlikely]]
      wait_until_copied();
  }

  /// The block is also used on `stream`: when the storage dies, the block is not handed out again
  /// before the work that is then queued on `stream` is done. Does nothing for CPU streams and
  /// borrowed memory. Throws Unsupported inside graph::capture.
  void record_stream(const Stream& stream);
  /// To be called before a copy to another CUDA device is queued, which reads the memory on
  /// copy_stream(device()): as record_stream(), and the next bump_version() waits for the copy.
  void record_copy();

 private:
  friend class MemoryPool;
  void wait_until_copied();
  Storage(Device device, void* data, std::size_t bytes)
      : data_(data), bytes_(bytes), device_(device) {}

  void* data_;
  std::size_t bytes_;
  Device device_;
  bool pinned_ = false;
  std::atomic<std::uint32_t> version_{0};
  std::atomic<bool> copied_away_{false};  // by copies that no write has waited for
  detail::Block* block_ = nullptr;  // the allocator's bookkeeping; null when empty or borrowed
  void (*release_)(void*) = nullptr;
  void* release_context_ = nullptr;
};

}  // namespace weft
