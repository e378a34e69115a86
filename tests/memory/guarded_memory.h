// Host memory in which an access next to a storage ends the process.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <map>
#include <mutex>

#include "weft/core/runtime/runtime.h"

namespace weft::testing {

/// The CPU's runtime with every storage at an address of its own, between inaccessible pages. A
/// storage begins at a multiple of 64 bytes (as Storage::allocate guarantees), so some bytes may be
/// between it and a page. They contain a pattern, and the process ends if the pattern has changed
/// when the storage is freed. New memory is filled with 0xff, which is NaN in every floating dtype
/// and -1 in i32 and i64. Freed memory cannot be accessed.
class GuardedMemory final : public Runtime {
 public:
  enum class Side { end, begin };

  /// `plain`: the CPU's normal runtime, which does everything else.
  explicit GuardedMemory(Runtime& plain) : plain_(plain) {}

  /// Which end of new storages touches an inaccessible page: the end may be up to 63 bytes away.
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
    unsigned char* pages;  // the first and the last one are guards
    std::size_t mapped;
    unsigned char* data;
    std::size_t bytes;
  };

  Runtime& plain_;
  std::atomic<Side> side_ = Side::end;
  std::mutex mutex_;
  std::map<void*, Place> lent_;  // by the allocator's address
  std::deque<Place> freed_;      // their addresses are not reused for a while
};

}  // namespace weft::testing
