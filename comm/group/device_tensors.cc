#include "weft/comm/group/device_tensors.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "weft/comm/backend/device_ring.h"
#include "weft/comm/backend/thin_links.h"
#include "weft/comm/group/fingerprint.h"
#include "weft/comm/group/work.h"
#include "weft/comm/store/member.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/log.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/runtime/worker.h"
#include "weft/tensor/creation.h"

namespace weft::comm {
namespace {

constexpr int kMessages = -1;  // where a device's number would be: what messages alone go by
constexpr int kSharingVersion = 23000;  // NCCL 2.30: the first that can let ranks share a GPU

// Streams without an owner, to be reused: a runtime never frees a stream that it has made.
struct SpareStreams {
  std::mutex mutex;
  std::vector<Stream> streams;

  static SpareStreams& instance() {
    static auto* const spare = new SpareStreams;
    return *spare;
  }
};

// A tensor of the same size in page-locked memory, which `stream` uses; undefined for an undefined
// x.
Tensor on_host(const Tensor& x, const Stream& stream) {
  if (!x.defined()) return {};
  const auto memory = Storage::allocate_pinned(buffer_of(x).bytes());
  memory->record_stream(stream);
  const Shape shape{x.numel()};
  return as_strided(memory, x.dtype(), shape, contiguous_strides(shape), 0);
}

void queue_copy(const Tensor& to, const Tensor& from, const Stream& stream) {
  const Tensor& there = to.device().is_cuda() ? to : from;
  there.storage()->record_stream(stream);
  runtime(stream.device)
      .copy(to.raw_data(), to.device(), from.raw_data(), from.device(), buffer_of(to).bytes(),
            stream);
}

}  // namespace

std::shared_ptr<Event> event_here(Device device) {
  std::shared_ptr<Event> event = runtime(device).new_event(device.index);
  event->record(current_stream(device));
  return event;
}

void wait_for(const Event& event, Device device, const Deadline& deadline,
              const std::function<void()>& check) {
  if (spin_until([&] { return event.done(); })) return;
  while (!event.done()) {
    check();
    WEFT_CHECK(!deadline.passed(), Timeout, "process_group", "the work on ", device,
               " that this operation has to wait for is not done");
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

SideStream::SideStream(Device device) {
  auto& [mutex, streams] = SpareStreams::instance();
  const std::lock_guard lock(mutex);
  const auto found = std::ranges::find(streams, device, &Stream::device);
  if (found == streams.end()) {
    stream_ = runtime(device).new_stream(device.index);
  } else {
    stream_ = *found;
    streams.erase(found);
  }
}

SideStream::~SideStream() {
  auto& [mutex, streams] = SpareStreams::instance();
  const std::lock_guard lock(mutex);
  try {
    streams.insert(streams.begin(), stream_);
  } catch (const std::bad_alloc&) {  // the stream is never used again
  }
}

// --- Through the host ----------------------------------------------------------------------------

void DeviceOperations::stage(const Operation& operation, const Stream& stream, Backend& host,
                             const Deadline& deadline) {
  const Device device = stream.device;
  Operation staged = operation;
  staged.x = on_host(operation.x, stream);
  staged.y = on_host(operation.y, stream);
  if (staged.x.defined()) queue_copy(staged.x, operation.x, stream);
  const std::shared_ptr<Event> event = runtime(device).new_event(device.index);
  event->record(stream);
  wait_for(*event, device, deadline);

  staged.run(staged, host, deadline);

  if (operation.y.defined()) {
    queue_copy(operation.y, staged.y, stream);
  } else if (operation.writes_x) {
    queue_copy(operation.x, staged.x, stream);
  }
  event->record(stream);
  operation.work->event = event;
  operation.work->device = device;
}

// --- With NCCL -----------------------------------------------------------------------------------

namespace {

void put(char (&to)[128], const std::string& text) { text.copy(to, sizeof to - 1); }

NcclPlace place_here(int device) {
  NcclPlace place;
  try {
    check_nccl();
    const Member here = this_member(0, "");
    put(place.gpu, registered_nccl()->gpu(device) + " " + here.boot);
    put(place.process, detail::concat(here.boot, ' ', here.pids, ' ', here.pid, ' ', here.start));
    place.version = registered_nccl()->version();
  } catch (const Error& error) {
    std::string(error.what()).copy(place.problem, sizeof place.problem - 1);
  }
  return place;
}

// Prepares NCCL for several ranks on one GPU; called before NCCL's first call. Variables that the
// user has set are kept.
void prepare_sharing(int version, const Members& members, int ranks_per_gpu) {
  const auto set = [](const char* name, const std::string& value) {
    ::setenv(name, value.c_str(), /*overwrite=*/0);
  };
  set("NCCL_NVLS_ENABLE", "0");
  if (version >= kSharingVersion) {
    set("NCCL_MULTI_RANK_GPU_ENABLE", "1");
    set("NCCL_MAX_CTAS", std::to_string(std::max(1, 8 / ranks_per_gpu)));
    return;
  }
  // Makes NCCL treat each rank as a host of its own, so that all data goes through sockets.
  set("NCCL_HOSTID",
      detail::concat(this_member(0, "").host, "-r", members.number_in_run(members.rank)));
  set("NCCL_NET", "Socket");
  set("NCCL_IB_DISABLE", "1");
  set("NCCL_SOCKET_IFNAME", "lo");
}

template <class T>
Buffer bytes_of(std::span<T> values) {
  return {values.data(), static_cast<std::int64_t>(values.size_bytes()), DType::u8};
}

}  // namespace

NcclPlan plan_nccl(std::span<const NcclPlace> places, const Members& members,
                   CudaTransport transport) {
  const auto name = [&](std::size_t r) {
    return "rank " + std::to_string(members.number_in_run(static_cast<int>(r)));
  };
  NcclPlan plan;
  for (std::size_t r = 0; r < places.size(); ++r) {
    if (places[r].problem[0]) return {.problem = name(r) + ": " + places[r].problem};
    int on_its_gpu = 1;
    for (std::size_t other = 0; other < r; ++other) {
      if (std::strcmp(places[r].gpu, places[other].gpu) != 0) continue;
      ++on_its_gpu;
      const bool threads = std::strcmp(places[r].process, places[other].process) == 0;
      if (transport == CudaTransport::automatic ||
          (threads && places[r].version < kSharingVersion)) {
        return {.problem = detail::concat(name(other), " and ", name(r), " have the same GPU",
                                          threads ? " and are threads of one process" : "")};
      }
    }
    plan.ranks_per_gpu = std::max(plan.ranks_per_gpu, on_its_gpu);
  }
  return plan;
}

DeviceOperations::Gpu& DeviceOperations::gpu(int key, Device device, Backend& host,
                                             const Deadline& deadline,
                                             const std::function<void()>& check) {
  if (const auto found = gpus_.find(key); found != gpus_.end()) return found->second;
  std::unique_lock lock(mutex_);
  Gpu& gpu = gpus_.try_emplace(key, device).first->second;
  if (!first_) first_ = &gpu;
  const std::string keys = "nccl/" + std::to_string(gpus_.size());
  lock.unlock();
  if (transport_ == CudaTransport::staging) return gpu;
  if (transport_ == CudaTransport::automatic && !registered_nccl()) return gpu;

  NcclPlace mine = place_here(device.index);
  std::vector<NcclPlace> places(members_.ranks.size());
  host.all_gather(bytes_of(std::span(&mine, 1)), bytes_of(std::span(places)), deadline);
  const NcclPlan plan = plan_nccl(places, members_, transport_);
  if (!plan.problem.empty()) {
    WEFT_CHECK(!demands_nccl(transport_), Unsupported, "nccl", plan.problem,
               "; the other backends carry CUDA tensors through the host's memory");
    return gpu;
  }
  WEFT_CHECK(thin_links().empty(), Unsupported, "nccl",
             "cannot make a link thin, as WEFT_FAULT wants; tensors on the CPU have links, or on "
             "CUDA those that go through the host's memory (CudaTransport::staging)");
  gpu.is_shared = plan.ranks_per_gpu > 1;
  if (gpu.is_shared) {
    prepare_sharing(mine.version, members_, plan.ranks_per_gpu);
    if (members_.rank == 0) {
      log_warning(detail::concat("EMULATED: ", plan.ranks_per_gpu,
                                 " ranks share a GPU; timings are not representative"));
    }
  }
  PrefixStore store(keys, store_->duplicate());
  std::unique_ptr<DeviceBackend> nccl = registered_nccl()->make(
      store, members_.rank, members_.size(), gpu.stream.get(), deadline, check);
  if (transport_ == CudaTransport::nccl_ring) {
    nccl = device_ring(std::move(nccl), gpu.stream.get());
  }
  lock.lock();
  if (aborted_) nccl->abort();
  gpu.nccl = std::move(nccl);
  return gpu;
}

namespace {

// Sends or receives a tensor of another GPU than NCCL's stream, through memory of that stream.
void run_on_copy(const Operation& message, const Stream& stream, Backend& nccl,
                 const Deadline& deadline) {
  const StreamScope scope(stream);
  Operation copied = message;
  copied.x = empty({message.x.numel()}, {message.x.dtype(), stream.device});
  if (!message.writes_x) queue_copy(copied.x, message.x, stream);
  copied.run(copied, nccl, deadline);
  if (message.writes_x) queue_copy(message.x, copied.x, stream);
}

}  // namespace

void DeviceOperations::run(const Operation& operation, Backend& host, const Deadline& deadline,
                           const std::function<void()>& check) {
  const Device device = operation.part().device();
  const std::uint64_t fingerprint = fingerprint_of(signature_of(operation));
  const bool is_message = operation.peer >= 0;
  // All ranks plan for NCCL, but a message has two of them: it cannot wait for the others. So its
  // ends only ask what the first plan was. Both know the same of it, since their messages and
  // collectives come in one order, and neither knows which GPU the other's tensor is on. If there
  // was none, two ranks plan for messages alone: their first collective may be on other GPUs, maybe
  // of one rank only, and both must plan in it.
  if (is_message &&
      (first_ ? !first_->nccl : transport_ == CudaTransport::automatic && members_.size() > 2)) {
    host.set_fingerprint(fingerprint);
    const SideStream side(device);
    operation.ready->block(side.get());
    return stage(operation, side.get(), host, deadline);
  }
  // No fingerprint while the ranks plan for NCCL: they may do so in different operations, such as a
  // send and a collective.
  host.set_fingerprint(0);
  const int key = is_message && members_.size() == 2 ? kMessages : device.index;
  Gpu& gpu = is_message && first_ ? *first_ : this->gpu(key, device, host, deadline, check);
  host.set_fingerprint(fingerprint);
  const Stream& stream = gpu.stream.get();
  // Kernels of ranks that share a GPU might wait for each other forever, so only one runs at a
  // time.
  if (gpu.is_shared) wait_for(*operation.ready, device, deadline, check);
  operation.ready->block(stream);
  if (!gpu.nccl) return stage(operation, stream, host, deadline);

  for (const Tensor& x : {operation.x, operation.y}) {
    if (x.defined()) x.storage()->record_stream(stream);
  }
  if (device == stream.device) {
    operation.run(operation, *gpu.nccl, deadline);
  } else {
    run_on_copy(operation, stream, *gpu.nccl, deadline);
  }
  const std::shared_ptr<Event> event = runtime(device).new_event(stream.device.index);
  event->record(stream);
  operation.work->event = event;
  operation.work->device = device;
  if (!gpu.is_shared) operation.work->finish(nullptr);
  wait_for(*event, device, deadline, [&] {
    gpu.nccl->check();
    check();
  });
}

Traffic DeviceOperations::traffic() const {
  Traffic sum;
  for (const auto& [index, gpu] : gpus_) {
    if (gpu.nccl) sum += gpu.nccl->traffic();
  }
  return sum;
}

void DeviceOperations::abort() noexcept {
  const std::lock_guard lock(mutex_);
  aborted_ = true;
  for (auto& [index, gpu] : gpus_) {
    if (gpu.nccl) gpu.nccl->abort();
  }
}

void DeviceOperations::close() {
  const std::lock_guard lock(mutex_);
  first_ = nullptr;
  gpus_.clear();
}

}  // namespace weft::comm
