// Collectives with NCCL, on communicators that do not block: after each call their state is polled
// until the call is queued, so no call waits beyond its deadline.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "weft/comm/backend/nccl.h"
#include "weft/comm/backend/rank_numbers.h"
#include "weft/comm/nccl/library.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/phase.h"
#include "weft/kernels/cuda/check.h"
#include "weft/kernels/cuda/timing.h"

namespace weft::comm::nccl {
namespace {

constexpr const char* kName = "nccl";
// The time that a communicator may need to end after all its work is done.
constexpr std::chrono::milliseconds kEnding{5'000};

[[noreturn]] void throw_result(ncclResult_t result, const char* call) {
  const ErrorCode code = result == ncclRemoteError          ? ErrorCode::PeerFailed
                         : result == ncclUnhandledCudaError ? ErrorCode::Cuda
                                                            : ErrorCode::Library;
  throw Error(code, kName,
              detail::concat(call, " failed: ", ncclGetErrorString(result), " (",
                             ncclGetLastError(nullptr), ')'),
              __FILE__, __LINE__);
}

void check_result(ncclResult_t result, const char* call) {
  if (result != ncclSuccess) throw_result(result, call);
}

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return ncclFloat32;
    case DType::f64: return ncclFloat64;
    case DType::bf16: return ncclBfloat16;
    case DType::i64: return ncclInt64;
    case DType::i32: return ncclInt32;
    case DType::u8:
    case DType::boolean: return ncclUint8;
  }
  WEFT_THROW(Internal, kName, "NCCL has no numbers of type ", dtype);
}

// NCCL has no booleans: they are reduced as the bytes 0 and 1.
ncclRedOp_t operation_of(ReduceOp op, DType dtype) {
  const bool boolean = dtype == DType::boolean;
  switch (op) {
    case ReduceOp::sum: return boolean ? ncclMax : ncclSum;
    case ReduceOp::avg: return ncclAvg;
    case ReduceOp::product: return boolean ? ncclMin : ncclProd;
    case ReduceOp::min: return ncclMin;
    case ReduceOp::max: return ncclMax;
  }
  WEFT_THROW(Internal, kName, "NCCL has no such reduction");
}

std::size_t count_of(const Buffer& x) { return static_cast<std::size_t>(x.count); }

class NcclBackend final : public DeviceBackend {
 public:
  NcclBackend(Store& store, int rank, int size, const Stream& stream, const Deadline& deadline,
              const std::function<void()>& check_others)
      : DeviceBackend(rank, size),
        stream_(stream),
        communication_(stream),
        check_others_(check_others) {
    fault_point("connect");
    ncclUniqueId id;
    if (rank == 0) {
      check_result(ncclGetUniqueId(&id), "ncclGetUniqueId");
      store.set("id", {id.internal, sizeof id.internal});
    } else {
      const std::string told = store.get("id", Deadline(deadline.left(), check_others));
      WEFT_CHECK(told.size() == sizeof id.internal, Comm, kName, "the store has ", told.size(),
                 " bytes where NCCL's id should be; other programs use its keys");
      std::memcpy(id.internal, told.data(), told.size());
    }
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    try {
      run("ncclCommInitRankConfig", deadline,
          [&] { return ncclCommInitRankConfig(&comm_, size, id, rank, &config); });
    } catch (...) {
      end();
      throw;
    }
  }
  ~NcclBackend() override { end(); }

  const char* name() const override { return kName; }
  void abort() noexcept override { aborted_ = true; }

  void check() override {
    check_aborted();
    check_others_();
    ncclResult_t result = ncclSuccess;
    check_result(ncclCommGetAsyncError(comm_, &result), "ncclCommGetAsyncError");
    check_result(result, "a collective");
  }

  void exchange(std::span<const Outgoing> out, std::span<const Incoming> in,
                const Deadline& deadline) override {
    const auto bytes = [](const auto& span) {
      void* const data = const_cast<std::byte*>(span.data());
      return Buffer{data, static_cast<std::int64_t>(span.size()), DType::u8};
    };
    group(deadline, [&](const Calls& calls) {
      for (const Outgoing& message : out) calls.send(bytes(message.bytes), message.to);
      for (const Incoming& message : in) calls.recv(bytes(message.bytes), message.from);
    });
    for (const Outgoing& message : out) traffic_.bytes_sent += std::ssize(message.bytes);
    for (const Incoming& message : in) traffic_.bytes_received += std::ssize(message.bytes);
    traffic_.messages_sent += std::ssize(out);
  }
  void broadcast(const Buffer& x, int root, const Deadline& deadline) override {
    queue("ncclBroadcast", deadline, [&] {
      return ncclBroadcast(x.data, x.data, count_of(x), type_of(x.dtype), root, comm_, stream());
    });
  }
  void all_reduce(const Buffer& x, ReduceOp op, const Deadline& deadline) override {
    queue("ncclAllReduce", deadline, [&] {
      return ncclAllReduce(x.data, x.data, count_of(x), type_of(x.dtype), operation_of(op, x.dtype),
                           comm_, stream());
    });
  }
  void reduce(const Buffer& x, ReduceOp op, int root, const Deadline& deadline) override {
    queue("ncclReduce", deadline, [&] {
      return ncclReduce(x.data, x.data, count_of(x), type_of(x.dtype), operation_of(op, x.dtype),
                        root, comm_, stream());
    });
  }
  void all_gather(const Buffer& x, const Buffer& y, const Deadline& deadline) override {
    queue("ncclAllGather", deadline, [&] {
      return ncclAllGather(x.data, y.data, count_of(x), type_of(x.dtype), comm_, stream());
    });
  }
  void reduce_scatter(const Buffer& x, const Buffer& y, ReduceOp op,
                      const Deadline& deadline) override {
    queue("ncclReduceScatter", deadline, [&] {
      return ncclReduceScatter(x.data, y.data, count_of(y), type_of(y.dtype),
                               operation_of(op, y.dtype), comm_, stream());
    });
  }
  // A rank's messages to itself also go through NCCL.
  void gather(const Buffer& x, const Buffer& y, int root, const Deadline& deadline) override {
    group(deadline, [&](const Calls& calls) {
      calls.send(x, root);
      for (int r = 0; rank() == root && r < size(); ++r)
        calls.recv(y.part(r * x.count, x.count), r);
    });
  }
  void scatter(const Buffer& x, const Buffer& y, int root, const Deadline& deadline) override {
    group(deadline, [&](const Calls& calls) {
      for (int r = 0; rank() == root && r < size(); ++r)
        calls.send(x.part(r * y.count, y.count), r);
      calls.recv(y, root);
    });
  }
  void all_to_all(const Buffer& x, const Buffer& y, const Deadline& deadline) override {
    group(deadline, [&](const Calls& calls) {
      const std::int64_t count = x.count / size();
      for (int r = 0; r < size(); ++r) {
        calls.send(x.part(r * count, count), r);
        calls.recv(y.part(r * count, count), r);
      }
    });
  }

 private:
  cudaStream_t stream() const { return cuda::handle(stream_); }

  void check_aborted() const {
    WEFT_CHECK(!aborted_, Comm, kName, "rank ", number_in_run(rank()), " aborted this group");
  }

  // Runs f() as the call `name`; returns when it is queued.
  template <class F>
  void run(const char* name, const Deadline& deadline, const F& f) {
    check_aborted();
    cuda::use_device(stream_.device.index);
    ncclResult_t result = f();
    while (result == ncclInProgress) {
      check_aborted();
      check_others_();
      WEFT_CHECK(!deadline.passed(), Timeout, kName, name,
                 " is not queued yet: not all ranks are there");
      check_result(ncclCommGetAsyncError(comm_, &result), "ncclCommGetAsyncError");
      if (result == ncclInProgress) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    check_result(result, name);
  }

  // Runs f(), which queues work, but never while kernels are being timed on the device.
  template <class F>
  void queue(const char* name, const Deadline& deadline, const F& f) {
    const auto may_queue = communication_.may_queue();
    run(name, deadline, f);
  }

  // The messages of one NCCL group; the error of the first refused one is kept.
  struct Calls {
    NcclBackend& backend;
    ncclResult_t& result;

    void note(ncclResult_t of_call) const {
      if (result == ncclSuccess) result = of_call;
    }
    void send(const Buffer& x, int to) const {
      note(ncclSend(x.data, count_of(x), type_of(x.dtype), to, backend.comm_, backend.stream()));
    }
    void recv(const Buffer& x, int from) const {
      note(ncclRecv(x.data, count_of(x), type_of(x.dtype), from, backend.comm_, backend.stream()));
    }
  };
  template <class F>
  void group(const Deadline& deadline, const F& make_calls) {
    queue("a group of ncclSend and ncclRecv", deadline, [&] {
      ncclResult_t result = ncclGroupStart();
      make_calls(Calls{*this, result});
      const ncclResult_t end = ncclGroupEnd();
      return result == ncclSuccess ? end : result;
    });
  }

  // Lets the communicator finish its work if nothing has failed, else ends it at once.
  void end() noexcept {
    if (!comm_) return;
    try {
      check();
      run("ncclCommFinalize", Deadline(kEnding), [&] { return ncclCommFinalize(comm_); });
      ncclCommDestroy(std::exchange(comm_, nullptr));
    } catch (const std::exception&) {
      if (comm_) ncclCommAbort(std::exchange(comm_, nullptr));
    }
  }

  const Stream stream_;
  const cuda::CommunicationStream communication_;
  const std::function<void()> check_others_;
  ncclComm_t comm_ = nullptr;
  std::atomic<bool> aborted_{false};
};

std::unique_ptr<DeviceBackend> make(Store& store, int rank, int size, const Stream& stream,
                                    const Deadline& deadline, const std::function<void()>& check) {
  return std::make_unique<NcclBackend>(store, rank, size, stream, deadline, check);
}

int version() {
  int found = 0;
  check_result(ncclGetVersion(&found), "ncclGetVersion");
  return found;
}

}  // namespace

#ifdef WEFT_EMULATED_CUDA

std::string missing() { return {}; }

#else

cuda::Library& library() {
  // "libnccl.so.2", with the major version of the header.
  static auto* const opened =
      new cuda::Library(("libnccl.so." + std::to_string(NCCL_MAJOR)).c_str());
  return *opened;
}

std::string missing() { return library().error(); }

#endif

}  // namespace weft::comm::nccl

const weft::comm::Nccl weft_cuda_nccl{weft::comm::nccl::missing, weft::comm::nccl::version,
                                      weft::cuda::gpu_id, weft::comm::nccl::make};
