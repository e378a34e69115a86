// weft's own backend: messages over TCP (comm/backend/ring_connections.h).
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
#include "weft/comm/backend/collectives.h"
#include "weft/comm/backend/exchange_state.h"
#include "weft/comm/backend/rank_numbers.h"
#include "weft/comm/backend/ring_connections.h"
#include "weft/comm/store/failure.h"
#include "weft/core/base/error.h"

namespace weft::comm {
namespace {

constexpr char kName[] = "ring";

struct Header {
  std::uint32_t magic = 0x77656674;  // "weft"
  std::uint32_t number = 0;          // counts the messages in this direction, to detect lost ones
  std::uint64_t bytes = 0, fingerprint = 0;
};
static_assert(sizeof(Header) == 24);  // of these the fingerprint has 8

// A message on its way, in either direction.
struct Message {
  std::byte* data;
  std::size_t bytes;
  Header header = {};
  ThinLinks::Clock::time_point passes_link = {};
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
  auto held() const { return done() ? std::nullopt : held_for(messages[next].passes_link); }
};

struct Peer {
  int descriptor = -1;  // of the connection, once it was needed
  Lane out{.incoming = false}, in{.incoming = true};
};

class RingBackend final : public Backend {
 public:
  RingBackend(int rank, int size, std::shared_ptr<RingConnections> connections)
      : Backend(rank, size), connections_(std::move(connections)), peers_(size) {}

  const char* name() const override { return kName; }
  void set_links(const ThinLinks& links) override { links_ = links; }

  void exchange(std::span<const Outgoing> out, std::span<const Incoming> in,
                const Deadline& deadline) override {
    state_.run([&] {
      fill_lanes(out, in);
      connect_all(deadline);
      while (!move_all()) wait(deadline);
    });
  }

  // Needs no other connections than there are.
  void meet(const Deadline& deadline) override {
    ring_barrier(*this, deadline);
    traffic_ = {};
  }

  // Shutting down a connection wakes the threads that wait for it, here and at its other end.
  void abort() noexcept override {
    state_.abort();
    connections_->shut_down();
  }

 private:
  void fill_lanes(std::span<const Outgoing> out, std::span<const Incoming> in) {
    for (Peer& peer : peers_) {
      for (Lane* lane : {&peer.out, &peer.in}) {
        lane->messages.clear();
        lane->next = 0;
      }
    }
    for (const auto& [to, bytes] : out) {
      Lane& lane = peers_[to].out;
      // It is only read: the kernel's interface has one structure for both directions.
      auto* const data = const_cast<std::byte*>(bytes.data());
      const Header header{
          .number = lane.count++, .bytes = bytes.size(), .fingerprint = fingerprint()};
      lane.messages.push_back({data, bytes.size(), header, links_.passed(to, bytes.size())});
    }
    for (const auto& [r, bytes] : in) peers_[r].in.messages.push_back({bytes.data(), bytes.size()});
  }

  void connect_all(const Deadline& deadline) {
    for (int r = 0; r < size(); ++r) {
      Peer& peer = peers_[r];
      if (peer.descriptor >= 0 || (peer.out.done() && peer.in.done())) continue;
      try {
        peer.descriptor = connections_->descriptor(r, deadline);
      } catch (const Error&) {
        if (state_.aborted()) state_.throw_aborted();
        throw;
      }
    }
  }

  // Moves what it can without waiting; returns whether everything is done.
  bool move_all() {
    waits_.clear();
    held_ = std::chrono::nanoseconds::max();
    for (int r = 0; r < size(); ++r) {
      Peer& peer = peers_[r];
      short events = move(r, peer.out) ? 0 : peer.out.held() ? POLLRDHUP : POLLOUT;
      if (!move(r, peer.in)) events |= POLLIN;
      if (events != 0) waits_.push_back({peer.descriptor, events, 0});
    }
    return waits_.empty();
  }

  bool move(int rank, Lane& lane) {
    for (; !lane.done(); ++lane.next) {
      Message& message = lane.messages[lane.next];
      if (const auto held = held_for(message.passes_link)) {
        held_ = std::min(held_, *held);
        return false;
      }
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
    const int fd = peers_[rank].descriptor, flags = MSG_DONTWAIT | MSG_NOSIGNAL;
    const ssize_t n = lane.incoming ? ::recvmsg(fd, &call, flags) : ::sendmsg(fd, &call, flags);
    if (n < 0 && errno == EINTR) return true;
    if (n < 0 && errno == EAGAIN) return false;
    if (n <= 0) fail(rank, n == 0 ? 0 : errno);
    message.moved += static_cast<std::size_t>(n);
    if (lane.incoming && !headed && message.moved >= sizeof(Header)) check(rank, lane, message);
    return true;
  }

  void check(int from, Lane& lane, const Message& message) {
    const Header& header = message.header;
    WEFT_CHECK(header.magic == Header().magic && header.number == lane.count++, Comm, kName,
               "rank ", number_in_run(from), " sends something that is no message of this group");
    compare_fingerprint(from, header.fingerprint);
    state_.check_bytes(from, header.bytes, rank(), message.bytes);
  }

  [[noreturn]] void fail(int rank, int error) const {
    const bool closed = error == 0 || error == ECONNRESET || error == EPIPE;
    state_.throw_closed(rank, closed ? "" : std::generic_category().message(error));
  }

  void wait(const Deadline& deadline) {
    if (deadline.passed()) time_out();
    const int closed = poll_for(waits_, std::min<std::chrono::nanoseconds>(held_, deadline.left()));
    const auto peer = std::ranges::find(peers_, closed, &Peer::descriptor);
    if (closed >= 0) fail(static_cast<int>(peer - peers_.begin()), 0);
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
  const std::shared_ptr<RingConnections> connections_;
  std::vector<Peer> peers_;  // by rank; this rank's own is not used
  std::vector<pollfd> waits_;
  ThinLinks links_;
  std::chrono::nanoseconds held_{0};  // until the next message passes its link
};

}  // namespace

BackendMaker ring_backend(std::string local_addr) {
  return [local_addr = std::move(local_addr)](const std::shared_ptr<Store>& store, int rank,
                                              int size, const Deadline& deadline) {
    const auto connections = std::make_shared<RingConnections>(local_addr, rank, size);
    return closing_late(connections, [&] {
      connections->meet(*store, deadline);
      return std::make_unique<RingBackend>(rank, size, connections);
    });
  };
}

}  // namespace weft::comm
