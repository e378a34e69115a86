#include "weft/kernels/cpu/runtime.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "weft/core/runtime/capture.h"

namespace weft {
namespace {

constexpr std::size_t kCacheLine = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Operations run on the calling thread, so everything before record() is already complete.
class CpuEvent final : public Event {
 public:
  void record(const Stream&) override {}
  void block(const Stream&) override {}
  bool done() const override { return true; }
  void synchronize() override {}
};

class CpuRuntime final : public Runtime {
 public:
  int device_count() override { return host_device_count(); }

  void* allocate(int, std::size_t bytes) override {
    // The allocator asks for multiples of 2 MiB; on huge pages a large tensor costs the processor
    // few address translations and the kernel few page faults.
    const std::size_t alignment = bytes >= kHugePage ? kHugePage : kCacheLine;
    const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    if (rounded < bytes) return nullptr;
    void* const p = std::aligned_alloc(alignment, rounded);
    if (p && alignment == kHugePage) madvise(p, rounded, MADV_HUGEPAGE);  // a hint: may fail
    return p;
  }
  void free(int, void* p, std::size_t) noexcept override { std::free(p); }
  void* allocate_pinned(std::size_t bytes) override { return allocate(0, bytes); }
  void free_pinned(void* p) noexcept override { std::free(p); }

  void copy(void* dst, Device, const void* src, Device, std::size_t bytes, const Stream&) override {
    if (bytes > 0) std::memcpy(dst, src, bytes);
  }
  void fill_zero(void* dst, std::size_t bytes, const Stream&) override {
    if (bytes > 0) std::memset(dst, 0, bytes);
  }

  Stream default_stream(int device) override { return {Device(DeviceType::cpu, device), nullptr}; }
  Stream new_stream(int device) override { return default_stream(device); }
  void synchronize(const Stream&) override { check_may_wait(); }
  void synchronize_device(int) override { check_may_wait(); }
  std::unique_ptr<Event> new_event(int) override { return std::make_unique<CpuEvent>(); }

 private:
  static void check_may_wait() {
    graph::check_not_capturing("synchronize", "a stream that records has nothing to wait for");
  }
};

constinit CpuRuntime instance;

// Uses the first priority that is free for programs: a static object that holds a tensor may be
// initialised before all static objects of this file, as the linker decides.
[[gnu::constructor(101)]] void register_cpu() { register_runtime(DeviceType::cpu, &instance); }

}  // namespace

Runtime& cpu_runtime() { return instance; }

}  // namespace weft
