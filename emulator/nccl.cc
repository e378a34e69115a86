// The functions of libnccl that weft calls, between processes of one host and threads of one
// process.
//
// Each pair of ranks has a local socket, and every operation is a set of messages on it. A rank
// sends its buffers when the operation is at the front of its stream; the other rank reads them
// when its own operation is. Each rank that gets a result reduces it, in the order of the ranks.
// Nothing blocks: an operation that waits for others keeps its stream where it is (streams.h).
#include <fcntl.h>
#include <nccl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "emulator/emulator.h"
#include "emulator/numbers.h"
#include "emulator/streams.h"

using namespace emulator;

namespace {

using Bytes = std::vector<char>;

/// What ranks exchange when they meet: NCCL compares hosts and GPUs.
struct Hello {
  int rank, device;
  std::size_t host;
};

/// The connection to one rank. Non-blocking.
struct Peer {
  int socket = -1;  // none for the rank itself
  bool closed = false;
  Bytes out;  // not sent yet
  Bytes in;   // of the message that is being received
  std::deque<Bytes> come;

  ~Peer() {
    if (socket >= 0) close(socket);
  }
  void send(const void* data, std::size_t bytes) {
    const std::uint64_t length = bytes;
    const auto* const head = reinterpret_cast<const char*>(&length);
    out.insert(out.end(), head, head + sizeof length);
    out.insert(out.end(), static_cast<const char*>(data), static_cast<const char*>(data) + bytes);
    move();
  }
  /// Moves as much as is possible without waiting.
  void move() {
    if (socket < 0) {
      in.insert(in.end(), out.begin(), out.end());
      out.clear();
    }
    while (socket >= 0 && !out.empty()) {
      const ssize_t sent = ::send(socket, out.data(), out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent <= 0) {
        closed |= sent < 0 && errno != EAGAIN && errno != EINTR;
        break;
      }
      out.erase(out.begin(), out.begin() + sent);
    }
    char some[1 << 16];
    for (ssize_t got = 1; socket >= 0 && got > 0;) {
      got = ::recv(socket, some, sizeof some, MSG_DONTWAIT);
      if (got > 0) in.insert(in.end(), some, some + got);
      closed |= got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
    }
    std::size_t at = 0;
    for (std::uint64_t length = 0; in.size() - at >= sizeof length; at += sizeof length + length) {
      std::memcpy(&length, in.data() + at, sizeof length);
      if (in.size() - at - sizeof length < length) break;
      const auto begin = in.begin() + static_cast<std::ptrdiff_t>(at + sizeof length);
      come.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(length));
    }
    in.erase(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(at));
  }
};

enum Kind { kMessage, kAllReduce, kReduce, kReduceScatter, kAllGather, kBroadcast };

/// The call, which both sides of a message compare.
struct What {
  Kind kind;
  ncclDataType_t type;
  std::size_t count;
  ncclRedOp_t op;
  int root;
};

/// One side of a message.
struct Message {
  int peer;
  char* data;
  std::size_t bytes;
};

/// A call as a set of messages: what is received is put in its place, or reduced in order.
struct Call {
  What what;
  cudaStream_t stream;
  std::vector<Message> out = {}, in = {};
};

}  // namespace

struct ncclComm {
  ncclComm(int rank_, int size_, std::string name_)
      : rank(rank_), size(size_), name(std::move(name_)), peers(static_cast<std::size_t>(size_)) {}
  ~ncclComm() {
    if (listener >= 0) close(listener);
  }
  const int rank, size;
  const std::string name;  // of the sockets
  int device = 0, listener = -1;
  std::vector<Peer> peers;
  std::vector<std::unique_ptr<Peer>> strangers;  // whose ranks are not known yet
  bool connected = false;
  ncclResult_t state = ncclInProgress;
  int polls = 0;  // number of queries until the call counts as queued
  std::function<void()> called;
  std::string error;
  std::int64_t queued = 0, done = 0;  // operations
  bool aborted = false;
};

namespace {

std::string& last_error() {
  static auto& text = *new std::string;
  return text;
}

ncclResult_t refuse(ncclResult_t result, const std::string& why) {
  last_error() = why;
  return result;
}

void fail(ncclComm& comm, ncclResult_t result, const std::string& why) {
  if (comm.state != ncclSuccess && comm.state != ncclInProgress) return;
  comm.state = result;
  comm.error = last_error() = why;
}

// --- Meeting -------------------------------------------------------------------------------------

// The same for the whole process, as in NCCL: computed once.
std::size_t host_hash() {
  static const std::size_t hash = [] {
    const char* const id = std::getenv("NCCL_HOSTID");
    return std::hash<std::string>()(id ? id : "this host");
  }();
  return hash;
}

// "Since 2.30, experimental."
bool may_share_gpu() {
  const char* const text = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return options().nccl >= 23000 && text && std::string(text) == "1";
}

// An address without a name in the file system.
std::pair<sockaddr_un, socklen_t> address_of(const ncclComm& comm, int rank) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string text = comm.name + "-" + std::to_string(rank);
  std::memcpy(address.sun_path + 1, text.data(), text.size());
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size())};
}

int new_socket() { return socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); }

// Each rank connects to the ranks before it.
void try_connecting(ncclComm& comm) {
  const Hello mine{comm.rank, comm.device, host_hash()};
  for (int r = 0; r < comm.rank; ++r) {
    Peer& peer = comm.peers[static_cast<std::size_t>(r)];
    if (peer.socket >= 0) continue;
    const int made = new_socket();
    const auto [address, length] = address_of(comm, r);
    if (connect(made, reinterpret_cast<const sockaddr*>(&address), length) != 0) {
      close(made);  // the other rank does not listen yet
      continue;
    }
    peer.socket = made;
    peer.send(&mine, sizeof mine);
  }
  for (int made;
       (made = accept4(comm.listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
    comm.strangers.push_back(std::make_unique<Peer>());
    comm.strangers.back()->socket = made;
  }
  for (auto& stranger : comm.strangers) {
    stranger->move();
    if (stranger->come.empty()) continue;
    Hello hello;
    std::memcpy(&hello, stranger->come.front().data(), sizeof hello);
    Peer& peer = comm.peers[static_cast<std::size_t>(hello.rank)];
    std::swap(peer.socket, stranger->socket);
    peer.in = std::move(stranger->in);
    peer.come = std::move(stranger->come);
    peer.send(&mine, sizeof mine);
  }
  std::erase_if(comm.strangers, [](const auto& stranger) { return stranger->socket < 0; });
  for (int r = 0; r < comm.size; ++r) {
    Peer& peer = comm.peers[static_cast<std::size_t>(r)];
    peer.move();
    if (r != comm.rank && peer.come.empty()) return;
  }
  for (int r = 0; r < comm.size; ++r) {
    if (r == comm.rank) continue;
    Hello hello;
    Peer& peer = comm.peers[static_cast<std::size_t>(r)];
    std::memcpy(&hello, peer.come.front().data(), sizeof hello);
    peer.come.pop_front();
    if (hello.device == mine.device && hello.host == mine.host && !may_share_gpu()) {
      fail(comm, ncclInvalidUsage,
           "Duplicate GPU detected : rank " + std::to_string(comm.rank) + " and rank " +
               std::to_string(r) + " both on CUDA device " + std::to_string(mine.device));
    }
  }
  comm.connected = true;
  if (comm.state == ncclInProgress) comm.state = ncclSuccess;
}

// --- Operations ----------------------------------------------------------------------------------

std::size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclFloat64: return 8;
    default: fault("NCCL's type %d", type);
  }
}

template <class T>
void reduce_as(ncclRedOp_t op, char* to, const char* from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    T a, b;
    std::memcpy(&a, to + i * sizeof a, sizeof a);
    std::memcpy(&b, from + i * sizeof b, sizeof b);
    a = static_cast<T>(op == ncclProd  ? a * b
                       : op == ncclMax ? std::max(a, b)
                       : op == ncclMin ? std::min(a, b)
                                       : a + b);
    std::memcpy(to + i * sizeof a, &a, sizeof a);
  }
}

void reduce_bf16(ncclRedOp_t op, char* to, const char* from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    float numbers[2];
    numbers[0] = static_cast<float>(load(Number::bf16, to, static_cast<std::int64_t>(i)));
    numbers[1] = static_cast<float>(load(Number::bf16, from, static_cast<std::int64_t>(i)));
    reduce_as<float>(op, reinterpret_cast<char*>(numbers), reinterpret_cast<char*>(numbers + 1), 1);
    store(Number::bf16, to, static_cast<std::int64_t>(i), numbers[0]);
  }
}

void reduce(ncclDataType_t type, ncclRedOp_t op, char* to, const char* from, std::size_t count) {
  switch (type) {
    case ncclUint8: return reduce_as<std::uint8_t>(op, to, from, count);
    case ncclInt32: return reduce_as<std::int32_t>(op, to, from, count);
    case ncclInt64: return reduce_as<std::int64_t>(op, to, from, count);
    case ncclFloat32: return reduce_as<float>(op, to, from, count);
    case ncclFloat64: return reduce_as<double>(op, to, from, count);
    case ncclBfloat16: return reduce_bf16(op, to, from, count);
    default: fault("a reduction of NCCL's type %d", type);
  }
}

// NCCL multiplies before it adds.
void scale(ncclDataType_t type, char* x, std::size_t count, double factor) {
  const Number number = type == ncclFloat64    ? Number::f64
                        : type == ncclFloat32  ? Number::f32
                        : type == ncclBfloat16 ? Number::bf16
                                               : Number::none;
  if (number == Number::none) fault("ncclAvg of NCCL's type %d", type);
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(count); ++i) {
    store(number, x, i, load(number, x, i) * factor);
  }
}

void check_memory(const ncclComm& comm, const Message& message) {
  if (message.bytes > 0 && place_of(message.data, message.bytes) != comm.device) {
    fault("NCCL, rank %d: %p is no %zu bytes of cuda:%d", comm.rank, message.data, message.bytes,
          comm.device);
  }
}

int exchanges = 0;  // number of operations that were run

/// The calls of a group, or a single call, when they are at the front of their stream.
class Exchange {
 public:
  Exchange(std::shared_ptr<ncclComm> comm, std::vector<Call> calls)
      : comm_(std::move(comm)), calls_(std::move(calls)), number_(comm_->queued++) {}

  /// Whether everything has been sent and received.
  bool ready() {
    if (comm_->aborted) return true;
    if (comm_->done != number_) return false;
    if (!std::exchange(sent_, true)) send();
    std::vector<std::size_t> expected(comm_->peers.size());
    for (const Call& call : calls_) {
      for (const Message& message : call.in) expected[static_cast<std::size_t>(message.peer)] += 2;
    }
    bool all = true;
    for (std::size_t r = 0; r < expected.size(); ++r) {
      Peer& peer = comm_->peers[r];
      peer.move();
      const bool through = peer.out.empty() && peer.come.size() >= expected[r];
      if (peer.closed && !through) {
        fail(*comm_, ncclRemoteError, "rank " + std::to_string(r) + " closed its connection");
      }
      all = all && through;
    }
    return all;
  }

  void run() {
    ++comm_->done;
    ++exchanges;
    for (std::size_t i = 0; !comm_->aborted && i < calls_.size(); ++i) receive(calls_[i]);
  }

 private:
  Peer& peer_of(const Message& message) {
    return comm_->peers[static_cast<std::size_t>(message.peer)];
  }

  void send() {
    open_memory({comm_->device});
    for (const Call& call : calls_) {
      for (const Message& message : call.out) {
        check_memory(*comm_, message);
        peer_of(message).send(&call.what, sizeof call.what);
        peer_of(message).send(message.data, message.bytes);
      }
    }
  }

  void receive(const Call& call) {
    const What& mine = call.what;
    const bool reduces = mine.op != ncclNumOps;
    bool first = true;
    for (const Message& message : call.in) {
      check_memory(*comm_, message);
      std::deque<Bytes>& come = peer_of(message).come;
      What theirs;
      std::memcpy(&theirs, come[0].data(), sizeof theirs);
      if (std::memcmp(&mine, &theirs, sizeof mine) != 0) {
        fault(
            "NCCL: rank %d calls %d of %zu numbers of type %d, rank %d calls %d of %zu of type %d",
            comm_->rank, mine.kind, mine.count, mine.type, message.peer, theirs.kind, theirs.count,
            theirs.type);
      }
      Bytes& data = come[1];
      // NCCL divides before it adds.
      if (mine.op == ncclAvg) scale(mine.type, data.data(), mine.count, 1.0 / comm_->size);
      if (reduces && !std::exchange(first, false)) {
        reduce(mine.type, mine.op, message.data, data.data(), mine.count);
      } else if (message.bytes > 0) {
        std::memcpy(message.data, data.data(), message.bytes);
      }
      come.erase(come.begin(), come.begin() + 2);
    }
  }

  const std::shared_ptr<ncclComm> comm_;
  const std::vector<Call> calls_;
  const std::int64_t number_;
  bool sent_ = false;
};

void enqueue(const std::shared_ptr<ncclComm>& comm, std::vector<Call> calls) {
  Stream* const stream = stream_of(calls.front().stream, comm->device);
  if (stream->device != comm->device) fault("NCCL: a stream of another device");
  if (stream->recording) fault("NCCL: in a graph");
  const auto exchange = std::make_shared<Exchange>(comm, std::move(calls));
  Operation operation{[exchange] { exchange->run(); }, nullptr, nullptr, comm->device, -1};
  operation.ready = [exchange] { return exchange->ready(); };
  put(stream, std::move(operation));
}

/// The calls of a thread since its ncclGroupStart().
struct Group {
  int depth = 0;
  std::shared_ptr<ncclComm> comm;
  std::vector<Call> calls;
};
thread_local Group group;

ncclResult_t end_group() {
  if (!group.comm) return ncclSuccess;
  const auto comm = std::exchange(group.comm, nullptr);
  auto calls = std::exchange(group.calls, {});
  if (comm->state != ncclSuccess) {
    return refuse(ncclInvalidUsage, "the communicator is not ready: " + comm->error);
  }
  // At once, or after some queries.
  comm->polls = static_cast<int>(random_word() % 3);
  if (comm->polls == 0) {
    enqueue(comm, std::move(calls));
    return ncclSuccess;
  }
  comm->called = [comm, calls] { enqueue(comm, calls); };
  return comm->state = ncclInProgress;
}

auto& comms = *new std::vector<std::shared_ptr<ncclComm>>;

std::shared_ptr<ncclComm> found(ncclComm_t comm) {
  const auto at = std::ranges::find(comms, comm, &std::shared_ptr<ncclComm>::get);
  if (at == comms.end()) fault("NCCL: a communicator that there is not, or no more");
  return *at;
}

void forget(ncclComm& comm) {
  comm.called = nullptr;
  for (Peer& peer : comm.peers) {
    if (peer.socket >= 0) close(std::exchange(peer.socket, -1));
  }
  std::erase_if(comms, [&](const auto& other) { return other.get() == &comm; });
}

ncclResult_t call(ncclComm_t handle, const Call& made) {
  const auto comm = found(handle);
  for (const Message& message : made.out) check_memory(*comm, message);
  for (const Message& message : made.in) check_memory(*comm, message);
  if (group.comm && group.comm != comm) fault("NCCL: a group of two communicators");
  group.comm = comm;
  group.calls.push_back(made);
  return group.depth > 0 ? ncclSuccess : end_group();
}

// One direction of a call: whether this rank sends (or receives), and whether each rank's message
// is its own part of the buffer or the whole buffer.
struct Side {
  bool takes_part, in_parts;
  void* data;
};
ncclResult_t collective(ncclComm_t handle, const What& what, int only_from, const Side& out,
                        const Side& in, cudaStream_t stream) {
  const Guard guard;
  const std::size_t bytes = what.count * size_of(what.type);
  Call made{what, stream};
  const int size = found(handle)->size;
  for (int r = 0; r < size; ++r) {
    const auto part = [&](const Side& side) {
      const std::size_t offset = side.in_parts ? static_cast<std::size_t>(r) * bytes : 0;
      return Message{r, static_cast<char*>(side.data) + offset, bytes};
    };
    const bool to_root_alone = what.kind == kReduce;
    if (out.takes_part && (!to_root_alone || r == what.root)) made.out.push_back(part(out));
    if (in.takes_part && (only_from < 0 || r == only_from)) made.in.push_back(part(in));
  }
  return call(handle, made);
}

ncclResult_t message(ncclComm_t handle, std::size_t count, ncclDataType_t type,
                     const std::function<void(Call&, std::size_t)>& add, cudaStream_t stream) {
  const Guard guard;
  Call made{{kMessage, type, count, ncclNumOps, 0}, stream};
  add(made, count * size_of(type));
  return call(handle, made);
}

}  // namespace

// For tests: how many operations have been run.
extern "C" int weft_emulated_exchanges() {
  const Guard guard;
  return exchanges;
}

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = options().nccl;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    default: return "unknown result code";
  }
}

const char* ncclGetLastError(ncclComm_t) {
  const Guard guard;
  return last_error().c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = {};
  std::FILE* const random = std::fopen("/dev/urandom", "rb");
  std::uint64_t number = 0;
  if (!random || std::fread(&number, sizeof number, 1, random) != 1) fault("no /dev/urandom");
  std::fclose(random);
  std::snprintf(id->internal, sizeof id->internal, "weft-nccl-%016lx", number);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  const Guard guard;
  const ncclConfig_t usual = NCCL_CONFIG_INITIALIZER;
  if (config->size != usual.size || config->magic != usual.magic || config->blocking != 0) {
    fault("NCCL: a communicator that is not non-blocking");
  }
  if (rank < 0 || rank >= size) return refuse(ncclInvalidArgument, "no such rank");
  auto made = std::make_shared<ncclComm>(rank, size, id.internal);
  made->device = device_with_context();
  made->listener = new_socket();
  const auto [address, length] = address_of(*made, rank);
  if (bind(made->listener, reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(made->listener, size) != 0) {
    return refuse(ncclSystemError, std::string("a socket: ") + std::strerror(errno));
  }
  *comm = made.get();
  comms.push_back(std::move(made));
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* result) {
  const Guard guard;
  const auto comm = found(handle);
  if (!comm->connected) {
    try_connecting(*comm);
  } else if (comm->called) {
    if (--comm->polls <= 0) {
      comm->state = ncclSuccess;
      std::exchange(comm->called, nullptr)();
    }
  } else if (comm->state == ncclInProgress) {  // lets it come to its end
    run_exchanges();
    close_memory();
    if (comm->done == comm->queued) comm->state = ncclSuccess;
  }
  *result = comm->state;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  const Guard guard;
  const auto comm = found(handle);
  if (comm->state != ncclSuccess) return refuse(ncclInvalidUsage, comm->error);
  return comm->state = ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  const Guard guard;
  const auto comm = found(handle);
  if (comm->done != comm->queued) fault("ncclCommDestroy: there is work left");
  forget(*comm);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
  const Guard guard;
  const auto comm = found(handle);
  comm->aborted = true;
  forget(*comm);
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  const Guard guard;
  if (group.depth == 0) return refuse(ncclInvalidUsage, "ncclGroupEnd without its beginning");
  return --group.depth > 0 ? ncclSuccess : end_group();
}

ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, {kAllReduce, type, count, op, 0}, -1,
                    {true, false, const_cast<void*>(from)}, {true, false, to}, stream);
}

ncclResult_t ncclReduce(const void* from, void* to, std::size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, {kReduce, type, count, op, root}, -1,
                    {true, false, const_cast<void*>(from)}, {comm->rank == root, false, to},
                    stream);
}

ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, {kReduceScatter, type, count, op, 0}, -1,
                    {true, true, const_cast<void*>(from)}, {true, false, to}, stream);
}

ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, {kAllGather, type, count, ncclNumOps, 0}, -1,
                    {true, false, const_cast<void*>(from)}, {true, true, to}, stream);
}

ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, {kBroadcast, type, count, ncclNumOps, root}, root,
                    {comm->rank == root, false, const_cast<void*>(from)}, {true, false, to},
                    stream);
}

ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  auto* const data = static_cast<char*>(const_cast<void*>(from));
  return message(
      comm, count, type,
      [&](Call& made, std::size_t bytes) { made.out.push_back({peer, data, bytes}); }, stream);
}

ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return message(
      comm, count, type,
      [&](Call& made, std::size_t bytes) {
        made.in.push_back({peer, static_cast<char*>(to), bytes});
      },
      stream);
}

}  // extern "C"
