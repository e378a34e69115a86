#include "weft/comm/backend/ring_connections.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <span>
#include <system_error>
#include <utility>

#include "weft/comm/backend/random_number.h"
#include "weft/comm/backend/rank_numbers.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/cores.h"
#include "weft/core/runtime/phase.h"
#include "weft/core/runtime/thread_name.h"

namespace weft::comm {
namespace {

using std::chrono::milliseconds;

constexpr char kName[] = "ring";

// No guest is dropped to make room before this time: a rank sends its Hello as soon as it is
// connected, but on a loaded machine it may be interrupted just then.
constexpr milliseconds kTimeToSpeak{200};
constexpr std::size_t kMostGuests = 256;
// How long the connection of a higher rank that is gone may still be on its way: packets of two
// connections may overtake each other.
constexpr milliseconds kOnItsWay{1000};
// The answer that the connection made by the answering rank itself counts.
constexpr std::uint64_t kMineCounts = ~std::uint64_t{0};
// After an error of the system, until connections are accepted again.
constexpr milliseconds kPause{100};

std::string address_key(int rank) { return detail::concat("addr/", rank); }
std::string name_of(int rank) { return detail::concat("rank ", number_in_run(rank)); }

std::uint64_t group_number(Store& store) {
  return std::stoull(store.set_once("group", std::to_string(random_number())));
}

void enlarge_buffers(const Socket& socket) {
  const int buffer = 4 << 20;  // best effort: the system may allow less
  setsockopt(socket.fd(), SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
  setsockopt(socket.fd(), SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
}

}  // namespace

struct RingConnections::Guest {
  Guest(Socket s, milliseconds silence) : socket(std::move(s)), leaves_at(silence) {}

  Socket socket;
  Deadline speaks_by{kTimeToSpeak}, leaves_at;
  Hello hello = {};
  std::size_t have = 0;
};

RingConnections::RingConnections(std::string local_addr, int rank, int size, milliseconds silence)
    : local_addr_(std::move(local_addr)),
      rank_(rank),
      silence_(silence),
      most_guests_(kMostGuests),
      peers_(static_cast<std::size_t>(size)) {}

RingConnections::~RingConnections() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    if (listening_.valid()) listening_.shut_down();
  }
  if (thread_.joinable()) thread_.join();
}

void RingConnections::shut_down() noexcept {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  if (listening_.valid()) listening_.shut_down();
  for (const Peer& peer : peers_) {
    if (peer.socket.valid()) peer.socket.shut_down();
  }
  if (waits_for_answer_ >= 0) ::shutdown(waits_for_answer_, SHUT_RDWR);
  changed_.notify_all();
}

void RingConnections::meet(Store& store, const Deadline& deadline) {
  group_ = group_number(store);
  listening_ = listen_on(local_addr_, 0);
  store.set(address_key(rank_), detail::concat(local_addr_, ":", port_of(listening_)));
  fault_point();
  for (const int r : neighbours()) {
    if (r > rank_) continue;
    read_address(store, r, deadline);
    connect_down(r, deadline);
  }
  accept_neighbours(deadline);
  if (complete()) {
    listening_ = Socket();
    guests_.clear();
    return;
  }
  for (int r = 0; r < size(); ++r) {
    if (r != rank_ && !peers_[r].socket.valid()) read_address(store, r, deadline);
  }
  try {
    thread_ = std::thread([this] { serve(); });
  } catch (const std::system_error& error) {
    WEFT_THROW(Library, kName, "cannot start a thread: ", error.what());
  }
}

int RingConnections::descriptor(int rank, const Deadline& deadline) {
  const auto found = [&] {
    const std::lock_guard lock(mutex_);
    return peers_[rank].socket.fd();
  };
  if (found() < 0) rank < rank_ ? connect_down(rank, deadline) : connect_up(rank, deadline);
  return found();
}

std::vector<int> RingConnections::neighbours() const {
  const int n = size(), before = (rank_ + n - 1) % n, after = (rank_ + 1) % n;
  if (n == 1) return {};
  if (before == after) return {before};
  return {std::min(before, after), std::max(before, after)};
}

bool RingConnections::complete() const {
  return std::ranges::count_if(peers_, [](const Peer& p) { return p.socket.valid(); }) ==
         size() - 1;
}

// --- Connecting ----------------------------------------------------------------------------------

void RingConnections::read_address(Store& store, int rank, const Deadline& deadline) {
  within("meeting " + name_of(rank),
         [&] { peers_[rank].address = store.get(address_key(rank), deadline); });
}

// Connects to the rank and sends this rank's Hello.
Socket RingConnections::open(int rank, const Deadline& deadline) {
  const std::string& address = peers_[rank].address;
  const auto colon = address.rfind(':');
  Deadline or_end(milliseconds(0), [&] {
    static_cast<void>(deadline.passed());  // runs the deadline's own check
    or_end.move_to(deadline.at());
    const std::lock_guard lock(mutex_);
    WEFT_CHECK(!ended_, PeerFailed, kName, name_of(rank), " is not needed any more");
  });
  or_end.move_to(deadline.at());
  Socket socket;
  within("connecting to " + name_of(rank), [&] {
    socket = connect_to(address.substr(0, colon), std::stoi(address.substr(colon + 1)), or_end,
                        /*is_listening=*/true);
  });
  const Hello hello{group_, static_cast<std::uint64_t>(rank_)};
  send_all(socket, std::as_bytes(std::span(&hello, 1)), deadline, name_of(rank));
  return socket;
}

// Connects to a lower rank.
void RingConnections::connect_down(int rank, const Deadline& deadline) {
  {
    const std::lock_guard lock(mutex_);
    if (peers_[rank].socket.valid()) return;
    connecting_to_ = rank;
  }
  // A connection from that rank meanwhile is kept: it is answered when this one is in its place, or
  // closed if connecting fails.
  struct Connecting {
    RingConnections& of;
    ~Connecting() {
      const std::lock_guard lock(of.mutex_);
      of.connecting_to_ = -1;
      of.unanswered_ = Socket();
    }
  } const connecting{*this};
  Socket socket = open(rank, deadline);
  const std::lock_guard lock(mutex_);
  take(rank, std::move(socket), /*by_this_rank=*/true);
  if (unanswered_.valid()) answer(unanswered_, kMineCounts);
}

// Connects to a higher rank.
void RingConnections::connect_up(int rank, const Deadline& deadline) {
  try {
    if (take_answered(rank, open(rank, deadline), deadline)) return;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::PeerFailed) throw;
    // The rank has left, but its own connection to this rank may still be on its way.
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kOnItsWay, [&] { return peers_[rank].socket.valid() || ended_; });
    if (!peers_[rank].socket.valid()) throw;
    return;
  }
  await(rank, deadline);
}

// Waits until the thread has accepted the connection of a higher rank.
void RingConnections::await(int rank, const Deadline& deadline) {
  const auto over = [&] { return peers_[rank].socket.valid() || ended_; };
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, deadline.left(), over)) {
    lock.unlock();
    WEFT_CHECK(!deadline.passed(), Timeout, kName, "the connection of ", name_of(rank),
               " has not come yet");
    lock.lock();
  }
  WEFT_CHECK(peers_[rank].socket.valid(), PeerFailed, kName, name_of(rank),
             " is not needed any more");
}

// Waits for the answer and keeps the connection. Returns false if the other rank's connection
// counts.
bool RingConnections::take_answered(int rank, Socket socket, const Deadline& deadline) {
  const auto wait_on = [&](int descriptor) {
    const std::lock_guard lock(mutex_);
    waits_for_answer_ = descriptor;
    return !ended_;
  };
  if (!wait_on(socket.fd())) socket.shut_down();
  Hello answer = {};
  try {
    recv_all(socket, std::as_writable_bytes(std::span(&answer, 1)), deadline, name_of(rank));
    wait_on(-1);
  } catch (...) {
    wait_on(-1);
    throw;
  }
  if (answer.group == group_ && answer.rank == kMineCounts) return false;
  WEFT_CHECK(answer.group == group_ && answer.rank == static_cast<std::uint64_t>(rank), Comm, kName,
             "what listens on ", peers_[rank].address, " is not ", name_of(rank));
  const std::lock_guard lock(mutex_);
  take(rank, std::move(socket), /*by_this_rank=*/true);
  return true;
}

// Answers the Hello of a lower rank. Does not wait: a rank that does not read gets no answer.
bool RingConnections::answer(const Socket& socket, std::uint64_t with) const {
  const Hello answer{group_, with};
  return ::send(socket.fd(), &answer, sizeof answer, MSG_DONTWAIT | MSG_NOSIGNAL) ==
         static_cast<ssize_t>(sizeof answer);
}

// Keeps the connection, unless there is one already. The caller holds the lock.
void RingConnections::take(int rank, Socket socket, bool by_this_rank) {
  Peer& peer = peers_[rank];
  if (peer.socket.valid()) return;
  enlarge_buffers(socket);
  if (ended_) socket.shut_down();
  peer.socket = std::move(socket);
  peer.by_this_rank = by_this_rank;
  changed_.notify_all();
}

// --- Accepting -----------------------------------------------------------------------------------

// Accepts the connections of the neighbours above this rank. Strangers who are slow to speak, or
// who send nonsense, delay nobody. No rank leaves before all have met, unless it fails.
void RingConnections::accept_neighbours(const Deadline& deadline) {
  for (;;) {
    std::string missing;
    for (const int r : neighbours()) {
      if (!peers_[r].socket.valid())
        missing += (missing.empty() ? "" : ", ") + std::to_string(number_in_run(r));
    }
    if (missing.empty()) return;
    WEFT_CHECK(!deadline.passed(), Timeout, kName, name_of(rank_),
               " still waits for a connection of rank ", missing,
               ", which has failed or cannot reach the address that ", name_of(rank_),
               " listens on");
    receive(deadline, neighbours());
  }
}

void RingConnections::serve() {
  leave_thread_unbound();
  set_thread_name("ring accept");
  const auto ended = [&] {
    const std::lock_guard lock(mutex_);
    return ended_;
  };
  while (!ended()) {
    try {
      receive(Deadline(std::chrono::hours(1)), {});
    } catch (const Error&) {  // no descriptor is left, for example; or it ended
      if (!ended()) std::this_thread::sleep_for(kPause);
    }
  }
  guests_.clear();
  const std::lock_guard lock(mutex_);
  listening_ = Socket();
}

// Waits once: for guests, for their Hellos, and for the end of a watched rank, which is an error.
void RingConnections::receive(const Deadline& deadline, const std::vector<int>& watched) {
  const bool room = guests_.size() < most_guests_ || guests_.front().speaks_by.passed();
  std::vector<pollfd> waits(1, {room ? listening_.fd() : -1, POLLIN, 0});  // -1: ignored
  for (const int r : watched) waits.push_back({peers_[r].socket.fd(), POLLRDHUP, 0});
  for (const Guest& guest : guests_) waits.push_back({guest.socket.fd(), POLLIN, 0});
  auto left = deadline.left();
  if (!guests_.empty()) {
    const Guest& oldest = guests_.front();
    left = (room ? oldest.leaves_at : oldest.speaks_by).left(left);
  }
  ::poll(waits.data(), waits.size(), static_cast<int>(left.count()));
  for (std::size_t i = 0; i < watched.size(); ++i) {
    WEFT_CHECK(waits[1 + i].revents == 0, PeerFailed, kName, name_of(watched[i]),
               " closed its connection");
  }
  std::erase_if(guests_, [&](Guest& guest) { return hear(guest) || guest.leaves_at.passed(); });
  if (waits[0].revents != 0) admit();
}

// Reads from the guest. Returns whether to remove it: it is gone, or its Hello is complete.
bool RingConnections::hear(Guest& guest) {
  auto* const to = reinterpret_cast<std::byte*>(&guest.hello) + guest.have;
  const ssize_t n = ::recv(guest.socket.fd(), to, sizeof(Hello) - guest.have, MSG_DONTWAIT);
  if (n <= 0) return n == 0 || (errno != EAGAIN && errno != EINTR);
  guest.have += static_cast<std::size_t>(n);
  if (guest.have < sizeof(Hello)) return false;
  settle(guest.hello, std::move(guest.socket));
  return true;
}

// Handles a connection whose Hello is complete. Closes it if it is a stranger's, or if another one
// to that rank counts.
void RingConnections::settle(const Hello& hello, Socket socket) {
  if (hello.group != group_ || hello.rank >= peers_.size()) return;
  const int r = static_cast<int>(hello.rank);
  const std::lock_guard lock(mutex_);
  if (r == rank_) return;
  if (peers_[r].socket.valid()) {
    if (r < rank_ && peers_[r].by_this_rank) answer(socket, kMineCounts);
    return;
  }
  if (r == connecting_to_) {
    unanswered_ = std::move(socket);
    return;
  }
  if (r > rank_ || answer(socket, static_cast<std::uint64_t>(rank_))) {
    take(r, std::move(socket), /*by_this_rank=*/false);
  }
}

// Accepts the next connection. If there are as many guests as there may be, the oldest has to go.
// If the process has no descriptors for more, their present number is the most from then on.
void RingConnections::admit() {
  if (guests_.size() >= most_guests_) guests_.erase(guests_.begin());
  try {
    if (auto socket = accept_from(listening_, Deadline(milliseconds(0)))) {
      guests_.emplace_back(std::move(*socket), silence_);
    }
  } catch (const Error&) {
    if (guests_.empty()) throw;
    most_guests_ = guests_.size();
  }
}

}  // namespace weft::comm
