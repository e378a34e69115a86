#include "weft/comm/init.h"

#include <algorithm>
#include <utility>

#include "weft/comm/backend/backends.h"
#include "weft/comm/backend/nccl.h"
#include "weft/comm/descriptors.h"
#include "weft/comm/group/operation.h"
#include "weft/comm/place.h"
#include "weft/comm/store/rendezvous.h"
#include "weft/comm/store/socket.h"
#include "weft/comm/store/tcp_store.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/phase.h"
#include "weft/core/runtime/thread_state.h"

namespace weft::comm {
namespace {

constexpr const char* kOp = "init_process_group";
// How long rank 0 keeps the store for the others.
constexpr std::chrono::milliseconds kLeaveTime{2000};

// --- Backends ------------------------------------------------------------------------------------

struct NamedBackend {
  std::string name;
  BackendMaker make;
};

// Shared memory if all ranks are on one host, else weft's own connections. Never Gloo's: a stranger
// who connects at the same time as the ranks could end them.
BackendMaker best_backend(const std::string& local_addr) {
  return [local_addr](const std::shared_ptr<Store>& store, int rank, int size,
                      const Deadline& deadline) {
    const auto make = [&](const BackendMaker& backend, const char* prefix) {
      return backend(std::make_shared<PrefixStore>(prefix, store), rank, size, deadline);
    };
    try {
      return make(shm_backend(), "shm");
    } catch (const Error& error) {  // all ranks get the same error
      if (error.code() != ErrorCode::Unsupported) throw;
    }
    return make(ring_backend(local_addr), "ring");
  };
}

NamedBackend choose_backend(const InitOptions& options, int size) {
  const std::string &name = options.backend, &local_addr = options.local_addr;
  if (options.make_backend) {
    WEFT_CHECK(name == "auto", InvalidArgument, kOp, "both a backend, '", name,
               "', and a make_backend: give one of them");
    return {"of the program's own", options.make_backend};
  }
  if (name == "threads") {
    WEFT_CHECK(size == 1, InvalidArgument, kOp,
               "the backend threads is for ranks that are threads of one process, as "
               "comm::run_ranks() starts them");
    return {name, thread_backend()};
  }
  if (name == "gloo") return {name, gloo_backend(local_addr)};
  if (name == "ring") return {name, ring_backend(local_addr)};
  if (name == "shm") return {name, shm_backend()};
  if (name == "auto") return {name, best_backend(local_addr)};
  if (name == "nccl" || name == "nccl-ring") {
    if (size > 1) check_nccl();
    return {name, best_backend(local_addr)};
  }
  WEFT_THROW(InvalidArgument, kOp, "backend '", name,
             "' is not known; there are auto, gloo, nccl, nccl-ring, ring, shm and threads");
}

CudaTransport cuda_transport(const std::string& backend) {
  if (backend == "auto") return CudaTransport::automatic;
  if (backend == "nccl") return CudaTransport::nccl;
  return backend == "nccl-ring" ? CudaTransport::nccl_ring : CudaTransport::staging;
}

// --- The store -----------------------------------------------------------------------------------

// The store together with its server. The server ends when nobody holds the store any more, but
// first waits for the others to read there why this rank ends, and to leave.
std::shared_ptr<Store> host_store(const TcpStoreServer::Options& options) {
  struct Hosted {
    explicit Hosted(const TcpStoreServer::Options& options)
        : server(options), store(server.store()) {}
    ~Hosted() { server.wait_for_clients_to_leave(Deadline(kLeaveTime)); }
    Hosted(const Hosted&) = delete;
    Hosted& operator=(const Hosted&) = delete;
    TcpStoreServer server;
    std::unique_ptr<Store> store;
  };
  const auto hosted = std::make_shared<Hosted>(options);
  return {hosted, hosted->store.get()};
}

std::shared_ptr<Store> tcp_store(const Place& place, const InitOptions& options,
                                 const Deadline& deadline) {
  const std::string token =
      options.token ? *options.token : environment_variable("WEFT_STORE_TOKEN").value_or("");
  if (!place.hosts_store || place.rank != 0) {
    return std::make_shared<TcpStore>(place.host, place.port, token, deadline,
                                      place.hosts_store ? "rank 0" : "");
  }
  const int others = *place.size - 1;
  check_descriptors(kOp, detail::concat("rank 0 of ", *place.size, ", which hosts the store,"),
                    store_descriptors(others) + others);  // a group also needs a connection to each
  // The others connect to the host's name, which may mean another address of this machine.
  const bool elsewhere = !is_loopback(place.host) && !is_loopback(options.local_addr);
  return host_store(
      {.host = elsewhere ? options.local_addr : place.host, .port = place.port, .token = token});
}

std::shared_ptr<Store> join_by_tcp(const Place& place, const InitOptions& options,
                                   const Joining& joining, const Deadline& deadline) {
  try {
    const std::shared_ptr<Store> store = tcp_store(place, options, deadline);
    store->set_timeout(options.rendezvous_timeout);
    return join(store, joining, deadline);
  } catch (const Error& error) {
    // Errors of the rendezvous itself already name the ranks. A lost connection means that rank 0
    // has failed, if rank 0 hosts the store.
    if (error.op() == kOp || !place.hosts_store || place.rank == 0) throw;
    const std::string host =
        detail::concat("rank 0 of ", joining.ranks.size(), ", which hosts the store at ",
                       tcp_url(place.host, place.port));
    WEFT_CHECK(error.code() != ErrorCode::PeerFailed, PeerFailed, kOp, host,
               ", has failed before all ranks had met: ", error.what());
    WEFT_CHECK(error.code() != ErrorCode::Timeout, Timeout, kOp, host,
               ", has not come: ", error.what(),
               "; start all ranks, with the same address, on several hosts with one "
               "that is not on loopback for rank 0 (a host's own name may be: 127.0.1.1)");
    throw;
  }
}

}  // namespace

std::shared_ptr<ProcessGroup> init_process_group(const InitOptions& given) {
  return meet_in(nullptr, {}, given);
}

std::shared_ptr<ProcessGroup> meet_in(const std::shared_ptr<Store>& store,
                                      const Generation& generation, const InitOptions& given) {
  InitOptions options = given;
  if (const auto timeout = timeout_of_environment()) {
    options.rendezvous_timeout = options.group.timeout = *timeout;
    options.group.slow =
        std::min(options.group.slow, std::max(*timeout / 4, std::chrono::milliseconds(1)));
  }
  if (options.local_addr.empty()) {
    options.local_addr = environment_variable("WEFT_LOCAL_ADDR").value_or("127.0.0.1");
  }
  WEFT_CHECK(options.rendezvous_timeout.count() > 0, InvalidArgument, kOp, "rendezvous_timeout is ",
             options.rendezvous_timeout.count(), " ms, needs to be positive");
  const Place place = store ? Place{.rank = options.rank, .size = options.world_size}
                            : place_of(options.init_method, options.rank, options.world_size);
  const int rank = *place.rank, size = *place.size;
  WEFT_CHECK(size >= 1 && rank >= 0 && rank < size, InvalidArgument, kOp, "rank ", rank, " of ",
             size, ": ranks count from 0 to world_size - 1");
  const NamedBackend backend = choose_backend(options, size);
  if (!store) thread_state().rank = rank;
  const PhaseScope phase("rendezvous");
  fault_point();
  if (size == 1) {
    return std::make_shared<ProcessGroup>(thread_backend(), std::make_shared<MemoryStore>(), 0, 1,
                                          options.group, generation);
  }
  const Deadline deadline(options.rendezvous_timeout);
  const std::vector<int> ranks = Members::of_run(rank, size, generation).ranks;
  const Joining joining{this_member(ranks[rank], options.local_addr), ranks, backend.name,
                        generation.number > 0};
  const std::shared_ptr<Store> keys =
      store ? join(store, joining, deadline)
      : place.path.empty()
          ? join_by_tcp(place, options, joining, deadline)
          : join_in_file(place.path, joining, options.rendezvous_timeout, deadline);
  ProcessGroupOptions group = options.group;
  if (group.cuda == CudaTransport::automatic) group.cuda = cuda_transport(backend.name);
  return std::make_shared<ProcessGroup>(backend.make, keys, rank, size, group, generation);
}

}  // namespace weft::comm
