// Operations on tensors of CUDA devices. Private to comm/.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "weft/comm/backend/nccl.h"
#include "weft/comm/group/operation.h"
#include "weft/comm/group/options.h"
#include "weft/comm/store/store.h"
#include "weft/core/runtime/runtime.h"

namespace weft::comm {

/// Records an event in the calling thread's current stream of a CUDA device.
std::shared_ptr<Event> event_here(Device device);

/// Returns when the device has reached the event. Throws Timeout if it has not by the deadline; the
/// driver's own wait has no deadline. `check` is called now and then and may throw.
void wait_for(
    const Event& event, Device device, const Deadline& deadline,
    const std::function<void()>& check = [] {});

/// A stream that programs do not use, for one owner at a time.
class SideStream {
 public:
  explicit SideStream(Device device);
  ~SideStream();
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

  const Stream& get() const { return stream_; }

 private:
  Stream stream_;
};

/// Runs operations on tensors of CUDA devices: with NCCL on the devices (its collectives, or weft's
/// over its messages), or with the host's backend on copies in page-locked memory.
///
///   caller's stream   ... x is made | event                               wait()'s stream | event
///   side stream         staged:       | copy x to the host     copy back | event
///   host                              |           backend      |
///   side stream         NCCL:         | all-reduce ......................| event
///
/// For one thread, except abort().
class DeviceOperations {
 public:
  /// `store`: keys of the group; null for one rank.
  DeviceOperations(const Members& members, CudaTransport transport, Store* store)
      : members_(members), transport_(transport), store_(store) {}

  /// operation.work gets the event that signals the results; it is done when they are queued.
  /// Returns when the devices have done what other ranks wait for; until then it calls `check`
  /// again and again, which may throw. NCCL keeps `check` until close().
  void run(const Operation& operation, Backend& host, const Deadline& deadline,
           const std::function<void()>& check);
  /// What this rank has sent and received by NCCL, as far as it is known (Backend::traffic).
  Traffic traffic() const;
  /// From any thread: a thread that waits in run() gets Comm, at once.
  void abort() noexcept;
  /// Ends NCCL's communicators.
  void close();

 private:
  struct Gpu {
    explicit Gpu(Device device) : stream(device) {}
    SideStream stream;
    std::unique_ptr<DeviceBackend> nccl = nullptr;  // null: staged
    bool is_shared = false;                         // with other ranks
  };

  Gpu& gpu(int key, Device device, Backend& host, const Deadline& deadline,
           const std::function<void()>& check);
  void stage(const Operation& operation, const Stream& stream, Backend& host,
             const Deadline& deadline);

  const Members& members_;
  const CudaTransport transport_;
  Store* const store_;
  std::mutex mutex_;         // guards gpus_ and aborted_
  std::map<int, Gpu> gpus_;  // by number, or kMessages
  Gpu* first_ = nullptr;     // of the first plan, by which the messages of all GPUs go
  bool aborted_ = false;
};

/// What a rank tells the others before they use NCCL, as bytes.
struct NcclPlace {
  char gpu[128] = {}, process[128] = {};  ///< of the whole run
  char problem[256] = {};                 ///< why it cannot use NCCL; empty: it can
  std::int32_t version = 0;
};

/// The plan of all ranks for NCCL.
struct NcclPlan {
  std::string problem = {};  ///< why NCCL is not to be used; empty: it is
  int ranks_per_gpu = 1;     ///< the largest number
};
/// Follows NCCL's rules: ranks of one process need different GPUs. Ranks of one host need them too,
/// unless the user has allowed more ranks per GPU (NCCL 2.30) or has set another host id.
NcclPlan plan_nccl(std::span<const NcclPlace> places, const Members& members,
                   CudaTransport transport);

}  // namespace weft::comm
