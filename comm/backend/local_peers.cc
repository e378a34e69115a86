#include "weft/comm/backend/local_peers.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <system_error>

#include "weft/comm/backend/rank_numbers.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/phase.h"

namespace weft::comm {
namespace {

constexpr const char* kOp = "shm";

std::string reason() { return std::generic_category().message(errno); }

std::string random_name() {
  std::random_device random;
  std::string name = "weft-";
  for (int i = 0; i < 4; ++i) name += std::to_string(random()) + '.';
  return name;
}

struct AbstractAddress {
  sockaddr_un address{};
  socklen_t size;

  explicit AbstractAddress(const std::string& name)
      : size(static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())) {
    address.sun_family = AF_UNIX;
    name.copy(address.sun_path + 1, sizeof address.sun_path - 1);  // after a zero: no file name
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

Socket local_socket() {
  Socket socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  WEFT_CHECK(socket.valid(), Comm, kOp, "cannot make a Unix socket: ", reason());
  return socket;
}

bool of_this_user(const Socket& socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(socket.fd(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         peer.uid == ::geteuid();
}

// A descriptor must travel with at least one byte.
void send_descriptor(const Socket& to, int rank, const Socket& descriptor) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{
      .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = descriptor.fd();
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  // The socket's buffer has room for one byte: the next is sent only after this one was taken.
  WEFT_CHECK(::sendmsg(to.fd(), &message, MSG_NOSIGNAL) == 1, PeerFailed, kOp,
             "cannot give memory to rank ", number_in_run(rank), ": ", reason());
}

Socket receive_descriptor(const Socket& from, int rank, const Deadline& deadline) {
  for (;;) {
    char byte = 0;
    iovec data{&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{.msg_iov = &data,
                   .msg_iovlen = 1,
                   .msg_control = control,
                   .msg_controllen = sizeof control};
    const ssize_t n = ::recvmsg(from.fd(), &message, MSG_CMSG_CLOEXEC);
    if (n == 1) {
      const cmsghdr* const header = CMSG_FIRSTHDR(&message);
      WEFT_CHECK(header && header->cmsg_type == SCM_RIGHTS, Comm, kOp, "rank ", number_in_run(rank),
                 " has sent no memory");
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
      return Socket(fd);
    }
    WEFT_CHECK(n < 0 && (errno == EAGAIN || errno == EINTR), PeerFailed, kOp, "rank ",
               number_in_run(rank), " closed its connection");
    pollfd poll{from.fd(), POLLIN, 0};
    ::poll(&poll, 1, static_cast<int>(deadline.left().count()));
    WEFT_CHECK(poll.revents != 0 || !deadline.passed(), Timeout, kOp, "rank ", number_in_run(rank),
               " has given no memory");
  }
}

Socket new_memory(std::size_t bytes) {
  Socket memory(::memfd_create("weft", MFD_CLOEXEC));
  WEFT_CHECK(memory.valid(), Comm, kOp, "cannot make shared memory: ", reason());
  // Allocated now: a missing page would raise SIGBUS later.
  int error = 0;
  while ((error = ::posix_fallocate(memory.fd(), 0, static_cast<off_t>(bytes))) == EINTR) {
  }
  WEFT_CHECK(error == 0, OutOfMemory, kOp, "cannot get ", bytes,
             " bytes of shared memory: ", std::generic_category().message(error));
  return memory;
}

std::size_t size_of(const Socket& memory) {
  struct stat found{};
  WEFT_CHECK(::fstat(memory.fd(), &found) == 0, Comm, kOp,
             "cannot tell the size of shared memory: ", reason());
  return static_cast<std::size_t>(found.st_size);
}

}  // namespace

SharedMemory::SharedMemory(const Socket& memory, std::size_t bytes) : bytes_(bytes) {
  void* const mapped =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, memory.fd(), 0);
  WEFT_CHECK(mapped != MAP_FAILED, OutOfMemory, kOp, "cannot map ", bytes, " bytes: ", reason());
  data_ = static_cast<std::byte*>(mapped);
}

SharedMemory::~SharedMemory() { ::munmap(data_, bytes_); }

LocalPeers::LocalPeers(int rank, int size)
    : rank_(rank), size_(size), sockets_(static_cast<std::size_t>(size)) {}

void LocalPeers::connect(Store& store, const Deadline& deadline) {
  const int rank = rank_, size = size_;
  const auto key = [](const char* what, int of) { return detail::concat("local/", what, '/', of); };
  const auto told = [&](const char* what, int by) {
    return within(detail::concat("meeting rank ", number_in_run(by)),
                  [&] { return store.get(key(what, by), deadline); });
  };
  // Other processes know the name only from the store.
  const std::string name = random_name();
  listening_ = local_socket();
  const AbstractAddress own(name);
  WEFT_CHECK(
      ::bind(listening_.fd(), own.get(), own.size) == 0 && ::listen(listening_.fd(), size) == 0,
      Comm, kOp, "cannot listen on a Unix socket: ", reason());
  store.set(key("name", rank), name);
  fault_point();

  std::string failure;  // why this rank cannot connect to a rank below; all ranks read it
  for (int peer = 0; peer < rank && failure.empty(); ++peer) {
    const AbstractAddress address(told("name", peer));
    Socket socket = local_socket();
    if (::connect(socket.fd(), address.get(), address.size) != 0 || !of_this_user(socket)) {
      failure =
          detail::concat("rank ", number_in_run(rank), " cannot reach rank ", number_in_run(peer),
                         " by a Unix socket: it is on another host, or another user's");
      break;
    }
    sockets_[static_cast<std::size_t>(peer)] = std::move(socket);
  }
  store.set(key("failure", rank), failure);
  for (int peer = 0; peer < size; ++peer) {
    const std::string of_peer = told("failure", peer);
    if (of_peer.empty()) continue;
    // All living ranks refuse together. A rank that could not be reached because it has ended never
    // answers.
    store.set(key("refused", rank), "");
    for (int other = 0; other < size; ++other) told("refused", other);
    WEFT_THROW(Unsupported, kOp, of_peer, "; use the backend ring or gloo");
  }

  // All connections have been made by now and wait to be accepted.
  for (int peer = 0; peer < rank; ++peer) {
    send_all(sockets_[static_cast<std::size_t>(peer)], std::as_bytes(std::span(&rank, 1)), deadline,
             detail::concat("rank ", number_in_run(peer)));
  }
  for (int missing = size - 1 - rank; missing > 0;) {
    std::optional<Socket> socket = accept_from(listening_, deadline);
    WEFT_CHECK(socket, Timeout, kOp, missing, " ranks have not come");
    if (!of_this_user(*socket)) continue;
    int peer = -1;
    recv_all(*socket, std::as_writable_bytes(std::span(&peer, 1)), deadline, "a rank");
    if (peer <= rank || peer >= size || sockets_[static_cast<std::size_t>(peer)].valid()) continue;
    sockets_[static_cast<std::size_t>(peer)] = std::move(*socket);
    --missing;
  }
  listening_ = Socket();
}

std::unique_ptr<SharedMemory> LocalPeers::share(std::size_t bytes, const Deadline& deadline) const {
  if (rank_ != 0) {
    const Socket memory = receive_descriptor(sockets_[0], 0, deadline);
    // A mapping beyond the end of the memory would raise SIGBUS.
    const std::size_t given = size_of(memory);
    WEFT_CHECK(given == bytes, Comm, kOp, "rank ", number_in_run(0), " shares ", given,
               " bytes of memory with all ranks, rank ", number_in_run(rank_), " expects ", bytes,
               "; all must ask for the same size");
    return std::make_unique<SharedMemory>(memory, bytes);
  }
  const Socket memory = new_memory(bytes);
  auto shared = std::make_unique<SharedMemory>(memory, bytes);
  for (int peer = 1; peer < size_; ++peer) {
    send_descriptor(sockets_[static_cast<std::size_t>(peer)], peer, memory);
  }
  return shared;
}

bool LocalPeers::gone(int rank) const noexcept {
  pollfd poll{sockets_[static_cast<std::size_t>(rank)].fd(), POLLRDHUP, 0};
  return ::poll(&poll, 1, 0) > 0 && (poll.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void LocalPeers::shut_down() const noexcept {
  for (const Socket& socket : sockets_) {
    if (socket.valid()) socket.shut_down();
  }
}

}  // namespace weft::comm
