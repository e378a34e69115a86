// Host memory in which an access beside a storage ends the process.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <map>
#include <mutex>

#include "weft/core/runtime/runtime.h"

namespace weft::testing {

/// The CPU's runtime with every storage at a place of its own, between pages that cannot be
/// accessed. A storage begins at a multiple of 64 bytes (Storage::allocate promises that), so some
/// bytes may lie between it and a page: they hold a pattern, and a storage that is freed with
/// another one beside it ends the process. Fresh memory is full of 0xff, which is NaN in every
/// floating dtype and -1 in i32 and i64. Memory that was freed cannot be accessed.
class GuardedMemory final : public Runtime {
 public:
  enum class Side { end, begin };

  /// `plain`: the CPU's own runtime, which does the rest.
  explicit GuardedMemory(Runtime& plain) : plain_(plain) {}

  /// Which end of the storages made from now on touches a page: the end may be 63 bytes away.
  void set_side(Side side) { side_ = side; }

  void* lend(void* p, std::size_t bytes, const Stream& stream) override;
  void take_back(void* p, const Stream& stream) noexcept override;

  int device_count() override { return plain_.device_count(); }
  DeviceProperties properties(int device) override { return plain_.properties(device); }
  void* allocate(int device, std::size_t bytes) override { return plain_.allocate(device, bytes); }
  void free(int device, void* p, std::size_t bytes) noexcept override {
    plain_.free(device, p, bytes);
  }
  void* allocate_pinned(std::size_t bytes) override { return plain_.allocate_pinned(bytes); }
  void free_pinned(void* p) noexcept override { plain_.free_pinned(p); }
  void copy(void* dst, Device dst_device, const void* src, Device src_device, std::size_t bytes,
            const Stream& stream) override {
    plain_.copy(dst, dst_device, src, src_device, bytes, stream);
  }
  void fill_zero(void* dst, std::size_t bytes, const Stream& stream) override {
    plain_.fill_zero(dst, bytes, stream);
  }
  Stream default_stream(int device) override { return plain_.default_stream(device); }
  Stream new_stream(int device) override { return plain_.new_stream(device); }
  void synchronize(const Stream& stream) override { plain_.synchronize(stream); }
  void synchronize_device(int device) override { plain_.synchronize_device(device); }
  std::unique_ptr<Event> new_event(int device) override { return plain_.new_event(device); }

 private:
  struct Place {
    unsigned char* pages;  // the first one is a guard, and the last one
    std::size_t mapped;
    unsigned char* data;
    std::size_t bytes;
  };

  Runtime& plain_;
  std::atomic<Side> side_ = Side::end;
  std::mutex mutex_;
  std::map<void*, Place> lent_;  // by where the allocator has the memory
  std::deque<Place> freed_;      // whose addresses are not used again for a while
};

}  // namespace weft::testing
