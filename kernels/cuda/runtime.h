// Memory, copies, streams and events of CUDA devices.
#pragma once

#include <mutex>
#include <set>
#include <utility>

#include "weft/core/runtime/runtime.h"

namespace weft::cuda {

/// core/runtime/runtime.h describes the functions. default_stream() is CUDA's default stream (a
/// null handle), so a program's other CUDA code, which mostly runs there, stays ordered with weft.
/// new_stream() makes streams that do not wait for the default stream; they live as long as the
/// process.
class CudaRuntime final : public Runtime {
 public:
  int device_count() override;
  std::string why_fewer_devices() override;
  DeviceProperties properties(int device) override;
  void* allocate(int device, std::size_t bytes) override;
  void free(int device, void* p, std::size_t bytes) noexcept override;
  void* allocate_pinned(std::size_t bytes) override;
  void free_pinned(void* p) noexcept override;
#ifdef WEFT_EMULATED_CUDA
  void* lend(void* p, std::size_t bytes, const Stream& stream) override;
  void take_back(void* p, const Stream& stream) noexcept override;
#endif
  void copy(void* dst, Device dst_device, const void* src, Device src_device, std::size_t bytes,
            const Stream& stream) override;
  void fill_zero(void* dst, std::size_t bytes, const Stream& stream) override;
  Stream default_stream(int device) override;
  Stream new_stream(int device) override;
  void synchronize(const Stream& stream) override;
  void synchronize_device(int device) override;
  std::unique_ptr<Event> new_event(int device) override;
  std::unique_ptr<Event> new_timing_event(int device) override;
  bool can_record() const override { return true; }
  bool is_recording(const Stream& stream) override;
  void begin_recording(const Stream& stream) override;
  std::unique_ptr<RecordedWork> end_recording(const Stream& stream) override;
  void abandon_recording(const Stream& stream) noexcept override;
  void write_words(std::uint64_t* to, std::span<const std::uint64_t> words,
                   const Stream& stream) override;

 private:
  /// Enables direct copies between two devices if the machine supports them; otherwise the driver
  /// copies through the host.
  void connect(int from, int to);

  std::mutex mutex_;
  std::set<std::pair<int, int>> connected_;  // guarded by mutex_
};

/// Lives as long as the process, also while static objects are destroyed.
CudaRuntime& cuda_runtime();

}  // namespace weft::cuda
