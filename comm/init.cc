#include "weft/comm/init.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>
#include <utility>

#include "weft/comm/backend/backends.h"
#include "weft/comm/backend/nccl.h"
#include "weft/comm/descriptors.h"
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

// Where and as whom this process joins.
struct Place {
  std::string host;  // empty: a file
  int port = 0;
  std::string path;
  std::optional<int> rank, size;
  bool hosts_store = false;
};

[[noreturn]] void refuse_address(std::string_view address, const std::string& why) {
  WEFT_THROW(InvalidArgument, kOp, "init_method '", address, "': ", why,
             "; it is env://, tcp://host:port or file:///path, the latter two with rank and "
             "world_size, as in tcp://node0:29500?rank=0&world_size=2");
}

// The text before the first `separator`, which is taken off with it; all where there is none.
std::string_view take_until(std::string_view& text, char separator) {
  const std::size_t at = std::min(text.find(separator), text.size());
  const std::string_view taken = text.substr(0, at);
  text.remove_prefix(std::min(at + 1, text.size()));
  return taken;
}

int number_in(std::string_view address, std::string_view text) {
  int number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || stop != text.data() + text.size()) {
    refuse_address(address, "'" + std::string(text) + "' is no whole number");
  }
  return number;
}

Place parse_address(std::string_view address) {
  std::string_view query = address;
  std::string_view base = take_until(query, '?');
  Place place;
  if (base.starts_with("file://")) {
    base.remove_prefix(7);
    if (!base.starts_with('/')) refuse_address(address, "the path must begin with a slash");
    place.path = base;
  } else if (base.starts_with("tcp://")) {
    base.remove_prefix(6);
    const std::size_t colon = base.rfind(':');
    if (colon == std::string_view::npos) refuse_address(address, "the port is missing");
    std::string_view host = base.substr(0, colon);
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    if (host.empty()) refuse_address(address, "the host is missing");
    place.host = host;
    place.port = number_in(address, base.substr(colon + 1));
    if (place.port < 1 || place.port > 65535) refuse_address(address, "ports are 1 to 65535");
  } else {
    refuse_address(address, "it is of no kind that is known");
  }
  while (!query.empty()) {
    std::string_view value = take_until(query, '&');
    const std::string_view name = take_until(value, '=');
    if (name == "rank") {
      place.rank = number_in(address, value);
    } else if (name == "world_size") {
      place.size = number_in(address, value);
    } else {
      refuse_address(address, "'" + std::string(name) + "' is not known");
    }
  }
  return place;
}

Place place_of(const InitOptions& options) {
  if (options.world_size == 1) return {.rank = options.rank.value_or(0), .size = 1};
  if (options.init_method != "env://") {
    Place place = parse_address(options.init_method);
    place.hosts_store = true;
    if (options.rank) place.rank = options.rank;
    if (options.world_size) place.size = options.world_size;
    if (!place.rank || !place.size) {
      refuse_address(options.init_method,
                     std::string(place.rank ? "world_size" : "rank") + " is missing");
    }
    return place;
  }
  // What is given stands for what the launcher would have set.
  const LaunchEnvironment found = launch_environment([&](const char* name) {
    const std::string_view wanted = name;
    if (wanted == "RANK" && options.rank) return std::optional(std::to_string(*options.rank));
    if (wanted == "WORLD_SIZE" && options.world_size) {
      return std::optional(std::to_string(*options.world_size));
    }
    return environment_variable(name);
  });
  Place place = found.size == 1 ? Place() : parse_address(found.meeting);
  place.rank = found.rank;
  place.size = found.size;
  place.hosts_store = found.hosts_store;
  return place;
}

InitOptions with_timeout(InitOptions options) {
  const auto text = environment_variable("WEFT_TIMEOUT");
  if (!text) return options;
  double seconds = 0;
  const char* const end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, seconds);
  WEFT_CHECK(error == std::errc() && stop == end && seconds >= 0.001 && seconds <= 1e6,
             InvalidArgument, kOp, "environment variable WEFT_TIMEOUT is '", *text,
             "', expected seconds from 0.001 to 1000000, as in WEFT_TIMEOUT=30");
  const std::chrono::milliseconds timeout(std::llround(seconds * 1000));
  options.rendezvous_timeout = options.group.timeout = timeout;
  options.group.slow =
      std::min(options.group.slow, std::max(timeout / 4, std::chrono::milliseconds(1)));
  return options;
}

// --- Backends ------------------------------------------------------------------------------------

struct NamedBackend {
  std::string name;
  BackendMaker make;
};

// Shared memory where all ranks are on one host, else weft's own connections. Not Gloo's: a
// stranger who connects while the ranks do could end them.
BackendMaker best_backend(const std::string& local_addr) {
  return [local_addr](const std::shared_ptr<Store>& store, int rank, int size,
                      const Deadline& deadline) {
    const auto make = [&](const BackendMaker& backend, const char* prefix) {
      return backend(std::make_shared<PrefixStore>(prefix, store), rank, size, deadline);
    };
    try {
      return make(shm_backend(), "shm");
    } catch (const Error& error) {  // of all ranks
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
  if (name == "nccl") {
    if (size > 1) check_nccl();
    return {name, best_backend(local_addr)};
  }
  WEFT_THROW(InvalidArgument, kOp, "backend '", name,
             "' is not known; there are auto, gloo, nccl, ring, shm and threads");
}

// --- The store -----------------------------------------------------------------------------------

// With its server, which ends with the last who holds the store: not before the others have read
// there why this rank ends, and have left.
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
                    store_descriptors(others) + others);  // and a connection to each for a group
  // The others come to the host's name, which may stand for another address of this machine.
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
    // What the rendezvous itself says names the ranks. What a lost connection says is that of rank
    // 0 where that hosts the store.
    if (error.op() == kOp || !place.hosts_store || place.rank == 0) throw;
    const std::string host = detail::concat(
        "rank 0 of ", joining.size, ", which hosts the store at ", tcp_url(place.host, place.port));
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
  InitOptions options = with_timeout(given);
  if (options.local_addr.empty()) {
    options.local_addr = environment_variable("WEFT_LOCAL_ADDR").value_or("127.0.0.1");
  }
  WEFT_CHECK(options.rendezvous_timeout.count() > 0, InvalidArgument, kOp, "rendezvous_timeout is ",
             options.rendezvous_timeout.count(), " ms, needs to be positive");
  const Place place = place_of(options);
  const int rank = *place.rank, size = *place.size;
  WEFT_CHECK(size >= 1 && rank >= 0 && rank < size, InvalidArgument, kOp, "rank ", rank, " of ",
             size, ": ranks count from 0 to world_size - 1");
  const NamedBackend backend = choose_backend(options, size);
  thread_state().rank = rank;
  const PhaseScope phase("rendezvous");
  fault_point();
  if (size == 1) {
    return std::make_shared<ProcessGroup>(thread_backend(), std::make_shared<MemoryStore>(), 0, 1,
                                          options.group);
  }
  const Deadline deadline(options.rendezvous_timeout);
  const Joining joining{this_member(rank, options.local_addr), size, backend.name};
  std::shared_ptr<Store> keys;
  if (place.path.empty()) {
    keys = join_by_tcp(place, options, joining, deadline);
  } else {
    keys = join_in_file(place.path, joining, options.rendezvous_timeout, deadline);
  }
  ProcessGroupOptions group = options.group;
  if (group.cuda == CudaTransport::automatic && backend.name != "auto") {
    group.cuda = backend.name == "nccl" ? CudaTransport::nccl : CudaTransport::staging;
  }
  return std::make_shared<ProcessGroup>(backend.make, keys, rank, size, group);
}

}  // namespace weft::comm
