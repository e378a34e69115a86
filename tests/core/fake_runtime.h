// A device made of host memory that counts what it is asked for. Its streams are done only when the
// test says so.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/core/runtime/runtime.h"

namespace weft::testing {

class FakeRuntime : public Runtime {
 public:
  explicit FakeRuntime(DeviceType type, int devices = 1) : type_(type), devices_(devices) {}

  // Set by tests, read by the allocator in the same thread.
  std::size_t capacity = SIZE_MAX;  ///< total bytes that a device can give out
  bool broken = false;              ///< record() throws
  std::ptrdiff_t loan_shift = 0;    ///< added to a borrower's address; loans are logged if not 0

  std::size_t held = 0;       ///< bytes given out
  std::size_t most_held = 0;  ///< the maximum of `held`
  int allocations = 0;
  int frees = 0;
  int pinned_allocations = 0;
  int events_made = 0;
  int recorded = 0;
  int waited = 0;  ///< number of waits for events
  struct Loan {
    void* p;
    std::size_t bytes;
    Stream stream;
    friend bool operator==(const Loan&, const Loan&) = default;
  };
  std::vector<Loan> lent, taken_back;
  struct Wait {
    void* stream;
    int recorded;  ///< which record of an event it was, from 1
  };
  std::vector<Wait> waits;       ///< of streams for events
  std::vector<void*> copied_on;  ///< the streams of copies

  /// Work enqueued so far on the stream with this handle is done; or, from now on, it is not.
  void set_done(void* handle, bool done) {
    std::lock_guard lock(mutex_);
    done_[handle] = done;
  }

  int device_count() override { return devices_; }
  void* allocate(int, std::size_t bytes) override {
    std::lock_guard lock(mutex_);
    if (bytes > capacity - held) return nullptr;
    held += bytes;
    most_held = std::max(most_held, held);
    ++allocations;
    return std::aligned_alloc(512, bytes);
  }
  void free(int, void* p, std::size_t bytes) noexcept override {
    std::lock_guard lock(mutex_);
    held -= bytes;
    ++frees;
    std::free(p);
  }
  void* allocate_pinned(std::size_t bytes) override {
    std::lock_guard lock(mutex_);
    ++pinned_allocations;
    return std::aligned_alloc(512, bytes);
  }
  void free_pinned(void* p) noexcept override { std::free(p); }
  void* lend(void* p, std::size_t bytes, const Stream& stream) override {
    if (loan_shift != 0) lent.push_back({p, bytes, stream});
    return static_cast<char*>(p) + loan_shift;
  }
  void take_back(void* p, const Stream& stream) noexcept override {
    if (loan_shift != 0) taken_back.push_back({p, 0, stream});
  }
  void copy(void* dst, Device, const void* src, Device, std::size_t bytes,
            const Stream& stream) override {
    std::lock_guard lock(mutex_);
    copied_on.push_back(stream.handle);
    std::memcpy(dst, src, bytes);
  }
  void fill_zero(void* dst, std::size_t bytes, const Stream&) override {
    std::memset(dst, 0, bytes);
  }
  Stream default_stream(int device) override { return {Device(type_, device), nullptr}; }
  Stream new_stream(int device) override {
    std::lock_guard lock(mutex_);
    return {Device(type_, device), reinterpret_cast<void*>(++last_stream_)};
  }
  void synchronize(const Stream& stream) override { set_done(stream.handle, true); }
  void synchronize_device(int) override {}
  std::unique_ptr<Event> new_event(int) override {
    std::lock_guard lock(mutex_);
    ++events_made;
    return std::make_unique<FakeEvent>(*this);
  }

 private:
  class FakeEvent final : public Event {
   public:
    explicit FakeEvent(FakeRuntime& runtime) : runtime_(runtime) {}
    void record(const Stream& stream) override {
      WEFT_CHECK(!runtime_.broken, Cuda, "event", "the device is broken");
      std::lock_guard lock(runtime_.mutex_);
      handle_ = stream.handle;
      recorded_ = ++runtime_.recorded;
    }
    void block(const Stream& stream) override {
      std::lock_guard lock(runtime_.mutex_);
      runtime_.waits.push_back({stream.handle, recorded_});
    }
    bool done() const override {
      std::lock_guard lock(runtime_.mutex_);
      const auto found = runtime_.done_.find(handle_);
      return found == runtime_.done_.end() || found->second;
    }
    void synchronize() override {
      std::lock_guard lock(runtime_.mutex_);
      ++runtime_.waited;
      runtime_.done_[handle_] = true;
    }

   private:
    FakeRuntime& runtime_;
    void* handle_ = nullptr;
    int recorded_ = 0;
  };

  const DeviceType type_;
  const int devices_;
  std::mutex mutex_;
  std::map<void*, bool> done_;
  std::uintptr_t last_stream_ = 0;
};

}  // namespace weft::testing
