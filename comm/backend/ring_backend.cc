// weft's own backend: a TCP connection between any two ranks.
//
// Meeting: every rank listens, writes its address into the store, connects to the ranks below its
// own and accepts connections of those above. The side that connects sends a Hello first. It
// contains a number that is known only from the store, so that a stranger who finds the port is not
// taken for a rank. Until its Hello has arrived, nobody knows whether a connection is a rank or a
// stranger, so no connection is waited for alone.
//
// A message is a Header, by which the receiver checks that both sides mean the same message, and
// the bytes.

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "weft/comm/backend/backends.h"
#include "weft/comm/backend/exchange_state.h"
#include "weft/comm/backend/random_number.h"
#include "weft/comm/store/failure.h"
#include "weft/comm/store/socket.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/phase.h"

namespace weft::comm {
namespace {

constexpr char kName[] = "ring";

// --- Meeting -------------------------------------------------------------------------------------

struct Hello {
  std::uint64_t group;  // a random number that the ranks of a group share
  std::uint64_t rank;
};

// No guest is dropped to make room before this time: a rank sends its Hello as soon as it is
// connected, but on a loaded machine it may be interrupted just then.
constexpr std::chrono::milliseconds kTimeToSpeak{200};
constexpr std::size_t kMostGuests = 256;

// A connection whose Hello has not arrived completely.
struct Guest {
  explicit Guest(Socket s) : socket(std::move(s)) {}

  Socket socket;
  Deadline speaks_by{kTimeToSpeak};
  Hello hello = {};
  std::size_t have = 0;
};

std::string address_key(int rank) { return detail::concat("addr/", rank); }

std::uint64_t group_number(Store& store) {
  return std::stoull(store.set_once("group", std::to_string(random_number())));
}

void enlarge_buffers(const Socket& socket) {
  const int buffer = 4 << 20;  // best effort: the system may allow less
  setsockopt(socket.fd(), SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
  setsockopt(socket.fd(), SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
}

Socket connect_to_rank(Store& store, int rank, const Deadline& deadline) {
  const std::string address = store.get(address_key(rank), deadline);
  const auto colon = address.rfind(':');
  return connect_to(address.substr(0, colon), std::stoi(address.substr(colon + 1)), deadline,
                    /*is_listening=*/true);
}

// Reads from the guest. Returns whether to remove it: it is gone, or has sent a wrong Hello, or its
// Hello is complete and its socket has moved to `peers`.
bool hear(Guest& guest, std::uint64_t group, int rank, std::vector<Socket>& peers) {
  auto* const to = reinterpret_cast<std::byte*>(&guest.hello) + guest.have;
  const ssize_t n = ::recv(guest.socket.fd(), to, sizeof(Hello) - guest.have, MSG_DONTWAIT);
  if (n <= 0) return n == 0 || (errno != EAGAIN && errno != EINTR);
  guest.have += static_cast<std::size_t>(n);
  if (guest.have < sizeof(Hello)) return false;
  const std::uint64_t r = guest.hello.rank;
  if (guest.hello.group == group && r > static_cast<std::uint64_t>(rank) && r < peers.size() &&
      !peers[r].valid()) {
    peers[r] = std::move(guest.socket);
  }
  return true;
}

// Accepts the next connection. If there are `most` guests already, the oldest has to go. If the
// process has no descriptors for more, `most` becomes their present number.
void admit(const Socket& listening, std::vector<Guest>& guests, std::size_t& most) {
  if (guests.size() >= most) guests.erase(guests.begin());
  try {
    if (auto socket = accept_from(listening, Deadline(std::chrono::milliseconds(0)))) {
      guests.emplace_back(std::move(*socket));
    }
  } catch (const Error&) {
    if (guests.empty()) throw;
    most = guests.size();
  }
}

// Accepts the connections of the ranks above `rank`. Strangers who are slow to speak, or who send
// nonsense, delay nobody. No rank leaves before all have met, unless it fails.
void accept_ranks(const Socket& listening, std::uint64_t group, int rank,
                  std::vector<Socket>& peers, const Deadline& deadline) {
  std::vector<Guest> guests;
  std::size_t most_guests = kMostGuests;
  std::vector<pollfd> waits;
  for (;;) {
    std::string missing;
    for (std::size_t r = rank + 1; r < peers.size(); ++r) {
      if (!peers[r].valid()) missing += (missing.empty() ? "" : ", ") + std::to_string(r);
    }
    if (missing.empty()) return;
    WEFT_CHECK(!deadline.passed(), Timeout, kName, "rank ", rank,
               " still waits for a connection of rank ", missing,
               ", which has failed or cannot reach the address that rank ", rank, " listens on");
    const bool room = guests.size() < most_guests || guests.front().speaks_by.passed();
    waits.assign(1, {room ? listening.fd() : -1, POLLIN, 0});
    for (const Socket& peer : peers) waits.push_back({peer.fd(), POLLRDHUP, 0});  // -1: ignored
    for (const Guest& guest : guests) waits.push_back({guest.socket.fd(), POLLIN, 0});
    const auto left = room ? deadline.left() : guests.front().speaks_by.left(deadline.left());
    ::poll(waits.data(), waits.size(), static_cast<int>(left.count()));
    for (std::size_t r = 0; r < peers.size(); ++r) {
      WEFT_CHECK(waits[1 + r].revents == 0, PeerFailed, kName, "rank ", r,
                 " closed its connection");
    }
    std::erase_if(guests, [&](Guest& guest) { return hear(guest, group, rank, peers); });
    if (waits[0].revents != 0) admit(listening, guests, most_guests);
  }
}

struct Mesh {
  Socket listening;
  std::vector<Socket> peers;  // by rank; the one at this rank's place is empty
};

void connect_mesh(Mesh& mesh, Store& store, const std::string& local_addr, int rank,
                  const Deadline& deadline) {
  auto& [listening, peers] = mesh;
  const std::uint64_t group = group_number(store);
  listening = listen_on(local_addr, 0);
  store.set(address_key(rank), detail::concat(local_addr, ":", port_of(listening)));
  fault_point();
  for (int r = 0; r < rank; ++r) {
    const std::string who = detail::concat("rank ", r);
    within("meeting " + who, [&] { peers[r] = connect_to_rank(store, r, deadline); });
    const Hello hello{group, static_cast<std::uint64_t>(rank)};
    send_all(peers[r], std::as_bytes(std::span(&hello, 1)), deadline, who);
  }
  accept_ranks(listening, group, rank, peers, deadline);
  for (const Socket& peer : peers) {
    if (peer.valid()) enlarge_buffers(peer);
  }
}

// --- Messages ------------------------------------------------------------------------------------

struct Header {
  std::uint32_t magic = 0x77656674;  // "weft"
  std::uint32_t number = 0;          // counts the messages in this direction, to detect lost ones
  std::uint64_t bytes = 0;
};

// A message on its way, in either direction.
struct Message {
  Message(std::byte* data, std::size_t bytes) : data(data), bytes(bytes) {}

  Header header = {};
  std::byte* data;
  std::size_t bytes;
  std::size_t moved = 0;  // of header and data

  bool through() const { return moved == sizeof header + bytes; }
  std::size_t data_moved() const { return moved - std::min(moved, sizeof header); }
};

// One direction of a connection: the messages of this call, in order.
struct Lane {
  bool incoming;
  std::vector<Message> messages = {};
  std::size_t next = 0;
  std::uint32_t count = 0;  // of messages since the beginning

  bool done() const { return next == messages.size(); }
};

struct Peer {
  Socket socket;
  Lane out{.incoming = false}, in{.incoming = true};
};

class RingBackend final : public Backend {
 public:
  RingBackend(int rank, std::vector<Socket> sockets)
      : Backend(rank, static_cast<int>(sockets.size())) {
    for (Socket& socket : sockets) peers_.push_back({std::move(socket)});
  }

  const char* name() const override { return kName; }

  void exchange(std::span<const Outgoing> out, std::span<const Incoming> in,
                const Deadline& deadline) override {
    state_.run([&] {
      fill_lanes(out, in);
      while (!move_all()) wait(deadline);
    });
  }

  // Shutting down a connection wakes the threads that wait for it, here and at its other end.
  void abort() noexcept override {
    state_.abort();
    for (const Peer& peer : peers_) {
      if (peer.socket.valid()) peer.socket.shut_down();
    }
  }

 private:
  void fill_lanes(std::span<const Outgoing> out, std::span<const Incoming> in) {
    for (Peer& peer : peers_) {
      for (Lane* lane : {&peer.out, &peer.in}) {
        lane->messages.clear();
        lane->next = 0;
      }
    }
    for (const Outgoing& message : out) {
      Lane& lane = peers_[message.to].out;
      // It is only read: the kernel's interface has one structure for both directions.
      lane.messages.emplace_back(const_cast<std::byte*>(message.bytes.data()),
                                 message.bytes.size());
      lane.messages.back().header.number = lane.count++;
      lane.messages.back().header.bytes = message.bytes.size();
    }
    for (const Incoming& message : in) {
      peers_[message.from].in.messages.emplace_back(message.bytes.data(), message.bytes.size());
    }
  }

  // Moves what it can without waiting; returns whether everything is done.
  bool move_all() {
    waits_.clear();
    for (int r = 0; r < size(); ++r) {
      Peer& peer = peers_[r];
      short events = 0;
      if (!move(r, peer.out)) events |= POLLOUT;
      if (!move(r, peer.in)) events |= POLLIN;
      if (events != 0) waits_.push_back({peer.socket.fd(), events, 0});
    }
    return waits_.empty();
  }

  bool move(int rank, Lane& lane) {
    for (; !lane.done(); ++lane.next) {
      Message& message = lane.messages[lane.next];
      while (!message.through()) {
        if (!move_some(rank, lane, message)) return false;
      }
      (lane.incoming ? traffic_.bytes_received : traffic_.bytes_sent) += message.bytes;
      traffic_.messages_sent += !lane.incoming;
    }
    return true;
  }

  // One system call; false: it would have to wait. Usually header and bytes go together.
  bool move_some(int rank, Lane& lane, Message& message) {
    const bool headed = message.moved >= sizeof(Header);
    const std::size_t header_moved = std::min(message.moved, sizeof(Header));
    iovec parts[] = {{reinterpret_cast<std::byte*>(&message.header) + header_moved,
                      sizeof(Header) - header_moved},
                     {message.data + message.data_moved(), message.bytes - message.data_moved()}};
    msghdr call = {};
    call.msg_iov = parts;
    call.msg_iovlen = std::size(parts);
    const int fd = peers_[rank].socket.fd(), flags = MSG_DONTWAIT | MSG_NOSIGNAL;
    const ssize_t n = lane.incoming ? ::recvmsg(fd, &call, flags) : ::sendmsg(fd, &call, flags);
    if (n < 0 && errno == EINTR) return true;
    if (n < 0 && errno == EAGAIN) return false;
    if (n <= 0) fail(rank, n == 0 ? 0 : errno);
    message.moved += static_cast<std::size_t>(n);
    if (lane.incoming && !headed && message.moved >= sizeof(Header)) check(rank, lane, message);
    return true;
  }

  void check(int rank, Lane& lane, const Message& message) {
    const Header& header = message.header;
    WEFT_CHECK(header.magic == Header().magic && header.number == lane.count++, Comm, kName,
               "rank ", rank, " sends something that is no message of this group");
    state_.check_bytes(rank, header.bytes, this->rank(), message.bytes);
  }

  [[noreturn]] void fail(int rank, int error) const {
    const bool closed = error == 0 || error == ECONNRESET || error == EPIPE;
    state_.throw_closed(rank, closed ? "" : std::generic_category().message(error));
  }

  void wait(const Deadline& deadline) {
    if (deadline.passed()) time_out();
    ::poll(waits_.data(), waits_.size(), static_cast<int>(deadline.left().count()));
  }

  [[noreturn]] void time_out() const {
    for (const auto& [direction, did] : {std::pair(&Peer::in, "sent"), {&Peer::out, "taken"}}) {
      for (int r = 0; r < size(); ++r) {
        const Lane& lane = peers_[r].*direction;
        if (lane.done()) continue;
        const Message& message = lane.messages[lane.next];
        state_.throw_timeout(r, did, std::to_string(message.data_moved()), message.bytes);
      }
    }
    WEFT_THROW(Internal, kName, "a deadline passed with nothing to wait for");
  }

  ExchangeState state_{kName};
  std::vector<Peer> peers_;  // this rank's own has no socket
  std::vector<pollfd> waits_;
};

}  // namespace

BackendMaker ring_backend(std::string local_addr) {
  return [local_addr = std::move(local_addr)](const std::shared_ptr<Store>& store, int rank,
                                              int size, const Deadline& deadline) {
    const auto mesh = std::make_shared<Mesh>();
    mesh->peers.resize(size);
    return closing_late(mesh, [&] {
      connect_mesh(*mesh, *store, local_addr, rank, deadline);
      return std::make_unique<RingBackend>(rank, std::move(mesh->peers));
    });
  };
}

}  // namespace weft::comm
