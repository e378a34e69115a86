#include "weft/comm/store/tcp_store.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <span>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "weft/comm/store/key_table.h"
#include "weft/comm/store/socket.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/cores.h"
#include "weft/core/runtime/thread_name.h"
#include "weft/core/trace/trace.h"

namespace weft::comm {
namespace {

using std::chrono::milliseconds;

constexpr const char* kOp = "store";

// --- What goes over the wire ---------------------------------------------------------------------
//
// Frames: a length (u32), then that many bytes.
//   hello    kGreeting, the token                              first of all
//   request  Operation (u8), length of the key (u32), the key, and
//            the value (set, set_once), what to add (i64), or milliseconds to wait (i64, get)
//   reply    Status (u8), and the value or a text              one per hello and request, in order

static_assert(std::endian::native == std::endian::little, "numbers go as they lie in memory");

enum class Operation : std::uint8_t { set, get, try_get, add, set_once, erase };
enum class Status : std::uint8_t { ok, nothing, invalid };

constexpr std::string_view kGreeting = "weft store 1\n";
constexpr std::size_t kMostTokenBytes = 1024;
constexpr std::size_t kMostHelloBytes = kGreeting.size() + kMostTokenBytes;
constexpr std::size_t kMostFrameBytes = 16 + Store::kMostKeyBytes + Store::kMostValueBytes;

template <class T>
void append(std::string& bytes, T number) {
  static_assert(std::is_trivially_copyable_v<T>);
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

// Takes a number, or a number of bytes, from the front; nothing if there are too few.
template <class T>
std::optional<T> take(std::string_view& bytes) {
  if (bytes.size() < sizeof(T)) return std::nullopt;
  T number;
  std::memcpy(&number, bytes.data(), sizeof number);
  bytes.remove_prefix(sizeof number);
  return number;
}

std::optional<std::string> take(std::string_view& bytes, std::size_t size) {
  if (bytes.size() < size) return std::nullopt;
  std::string taken(bytes.substr(0, size));
  bytes.remove_prefix(size);
  return taken;
}

std::string frame(std::string_view payload) {
  std::string bytes;
  append(bytes, static_cast<std::uint32_t>(payload.size()));
  bytes += payload;
  return bytes;
}

std::string reply(Status status, std::string_view text = {}) {
  std::string payload;
  append(payload, status);
  payload += text;
  return frame(payload);
}

std::string reply(const std::optional<std::string>& value) {
  return value ? reply(Status::ok, *value) : reply(Status::nothing);
}

// Takes a time that does not reveal how much of the token is right.
bool same_token(std::string_view a, std::string_view b) {
  unsigned char difference = a.size() != b.size();
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  }
  return difference == 0;
}

void check_token(const std::string& host, const std::string& token) {
  WEFT_CHECK(token.size() <= kMostTokenBytes, InvalidArgument, kOp, "a token of ", token.size(),
             " bytes; the most are ", kMostTokenBytes);
  WEFT_CHECK(
      !token.empty() || is_loopback(host), InvalidArgument, kOp, "a store on ", host,
      " can be reached from other machines and needs a token: give all ranks the same secret, as "
      "InitOptions::token or in the environment variable WEFT_STORE_TOKEN (weftrun sets it)");
}

// --- The server ----------------------------------------------------------------------------------

constexpr milliseconds kLongestWait{1'000'000'000};
constexpr std::ptrdiff_t kMostStrangers = 1000;
// No client is dropped to make room before this time: a client says hello as soon as it is
// connected, but on a loaded machine it may be interrupted just then.
constexpr milliseconds kTimeToSpeak{200};
constexpr milliseconds kAcceptPause{100};
// Accepts at most this many before the present connections are served again, so that later clients
// do not push out one that has said hello.
constexpr std::ptrdiff_t kAcceptsPerTurn = 64;
constexpr std::size_t kReadBytes = std::size_t{1} << 16;

struct Connection {
  Connection(Socket s, milliseconds hello_time) : socket(std::move(s)), hello_by(hello_time) {}

  struct Wait {
    std::string key;
    Deadline until;
  };

  Socket socket;
  bool known = false;  // has given the token
  Deadline speaks_by{kTimeToSpeak}, hello_by;
  std::string in, out;  // received and not yet handled; still to be sent
  std::optional<Wait> waiting;
  bool close_after_reply = false;
  bool closed = false;
};

}  // namespace

struct TcpStoreServer::Impl {
  explicit Impl(Options o)
      : options(std::move(o)),
        listening(listen_on(options.host, options.port)),
        port(port_of(listening)),
        wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    WEFT_CHECK(wake.valid(), Comm, kOp,
               "cannot make an event: ", std::generic_category().message(errno));
    try {
      thread = std::thread([this] { run(); });
    } catch (const std::system_error& error) {
      WEFT_THROW(Library, kOp, "cannot start the server's thread: ", error.what());
    }
    table->observe([this] { wake_up(); });
  }

  ~Impl() {
    table->observe(nullptr);
    quit = true;
    wake_up();
    thread.join();
  }

  void wake_up() const noexcept {
    const std::uint64_t one = 1;
    static_cast<void>(!::write(wake.fd(), &one, sizeof one));  // fails if it is set already
  }

  void run() noexcept {
    leave_thread_unbound();
    set_thread_name("store");
    try {
      while (!quit) turn();
      end_waits();  // answers for keys that were set just before
    } catch (...) {
      // There is not even memory to poll. The clients notice the end of their connections.
    }
    connections.clear();
    listening = Socket();
  }

  void turn() {
    const bool accepting = accept_again.passed();
    polls.clear();
    polls.push_back({wake.fd(), POLLIN, 0});
    polls.push_back({accepting ? listening.fd() : -1, POLLIN, 0});
    for (const auto& c : connections) polls.push_back({c->socket.fd(), events_of(*c), 0});
    const int n =
        ::poll(polls.data(), polls.size(), static_cast<int>(idle_time(accepting).count()));
    WEFT_CHECK(n >= 0 || errno == EINTR, Comm, kOp, "cannot wait for clients");

    if (polls[0].revents != 0) {
      std::uint64_t count = 0;
      static_cast<void>(!::read(wake.fd(), &count, sizeof count));
    }
    for (std::size_t i = 0; i < connections.size(); ++i) {
      guarded(*connections[i], [&](Connection& c) { serve(c, polls[i + 2].revents); });
    }
    end_waits();
    if (polls[1].revents != 0) accept_some();
    std::erase_if(connections, [](const auto& c) { return c->closed; });
    clients = connections.size();
  }

  static short events_of(const Connection& c) {
    if (c.waiting) return POLLRDHUP;  // not POLLIN: requests before the answer stay in the socket
    return c.out.empty() ? POLLIN : POLLOUT;
  }

  milliseconds idle_time(bool accepting) const {
    milliseconds time = std::chrono::hours(1);
    if (!accepting) time = accept_again.left(time);
    for (const auto& c : connections) {
      if (!c->known) time = c->hello_by.left(time);
      if (c->waiting) time = c->waiting->until.left(time);
    }
    return time;
  }

  // An error of a connection, even lack of memory for it, ends only that connection.
  template <class F>
  static void guarded(Connection& c, const F& f) noexcept {
    try {
      if (!c.closed) f(c);
    } catch (...) {
      c.closed = true;
    }
  }

  void serve(Connection& c, short revents) {
    if (revents & POLLIN) {
      receive(c);
    } else if (revents & (POLLERR | POLLHUP | POLLRDHUP | POLLNVAL)) {
      c.closed = true;
    }
    advance(c);
    if (!c.known && c.hello_by.passed()) c.closed = true;
  }

  void receive(Connection& c) {
    buffer.resize(kReadBytes);
    const ssize_t n = ::recv(c.socket.fd(), buffer.data(), buffer.size(), 0);
    if (n > 0) {
      c.in.append(buffer.data(), static_cast<std::size_t>(n));
    } else if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
      c.closed = true;
    }
  }

  // Handles the received frames one after the other, as long as the answers can be sent.
  void advance(Connection& c) {
    flush(c);
    while (!c.closed && !c.waiting && c.out.empty()) {
      std::string_view rest = c.in;
      const auto length = take<std::uint32_t>(rest);
      if (!length) return;
      if (*length > (c.known ? kMostFrameBytes : kMostHelloBytes)) {
        c.closed = true;
        return;
      }
      if (rest.size() < *length) return;
      handle(c, rest.substr(0, *length));
      c.in.erase(0, sizeof *length + *length);
      flush(c);
    }
  }

  void flush(Connection& c) {
    if (c.closed || c.out.empty()) return;
    const ssize_t n = ::send(c.socket.fd(), c.out.data(), c.out.size(), MSG_NOSIGNAL);
    if (n > 0) {
      c.out.erase(0, static_cast<std::size_t>(n));
    } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
      c.closed = true;
    }
    if (c.out.empty() && c.close_after_reply) c.closed = true;
  }

  void handle(Connection& c, std::string_view payload) {
    if (c.known) {
      handle_request(c, payload);
    } else if (!payload.starts_with(kGreeting)) {
      c.closed = true;
    } else if (options.token.empty() ||
               same_token(payload.substr(kGreeting.size()), options.token)) {
      c.known = true;
      c.out = reply(Status::ok, kGreeting);
    } else {
      c.out = reply(Status::invalid);
      c.close_after_reply = true;
    }
  }

  void handle_request(Connection& c, std::string_view payload) {
    const auto operation = take<Operation>(payload);
    const auto key_size = take<std::uint32_t>(payload);
    const auto key = take(payload, key_size.value_or(0));
    if (!key || key->empty() || key->size() > Store::kMostKeyBytes ||
        payload.size() > Store::kMostValueBytes) {
      c.closed = true;
      return;
    }
    try {
      if (!answer(c, *operation, *key, payload)) c.closed = true;
    } catch (const Error& error) {
      c.out = reply(Status::invalid, error.what());
    }
  }

  // Answers the request. Returns false if it is not valid.
  bool answer(Connection& c, Operation operation, const std::string& key, std::string_view rest) {
    switch (operation) {
      case Operation::set:
        table->set(key, rest);
        c.out = reply(Status::ok);
        return true;
      case Operation::get:
        if (const auto time = take<std::int64_t>(rest)) {
          c.waiting = {key,
                       Deadline(std::clamp(milliseconds(*time), milliseconds(0), kLongestWait))};
          end_wait(c);
          return true;
        }
        return false;
      case Operation::try_get: c.out = reply(table->find(key)); return true;
      case Operation::add:
        if (const auto delta = take<std::int64_t>(rest)) {
          std::string sum;
          append(sum, table->add(key, *delta));
          c.out = reply(Status::ok, sum);
          return true;
        }
        return false;
      case Operation::set_once: c.out = reply(Status::ok, table->set_once(key, rest)); return true;
      case Operation::erase:
        c.out = reply(table->erase(key) ? Status::ok : Status::nothing);
        return true;
    }
    return false;
  }

  void end_waits() noexcept {
    for (const auto& c : connections) {
      if (!c->waiting) continue;
      guarded(*c, [&](Connection& waiting) {
        end_wait(waiting);
        advance(waiting);  // requests sent meanwhile
      });
    }
  }

  void end_wait(Connection& c) {
    const std::optional<std::string> value = table->find(c.waiting->key);
    if (!value && !c.waiting->until.passed()) return;
    c.waiting.reset();
    c.out = reply(value);
  }

  void accept_some() noexcept {
    try {
      const auto room = kMostStrangers - std::ranges::count_if(connections, is_stranger);
      if (room <= 0 && !make_room()) return;
      for (int i = 0; i < std::clamp<std::ptrdiff_t>(room, 1, kAcceptsPerTurn); ++i) {
        std::optional<Socket> socket = accept_from(listening, Deadline(milliseconds(0)));
        if (!socket) return;
        connections.push_back(std::make_unique<Connection>(*std::move(socket), options.hello_time));
      }
    } catch (...) {
      make_room();  // no descriptor or memory is left
    }
  }

  // Makes room for a connection. If no client may be dropped yet, accepting pauses: else poll()
  // would return at once, again and again, because of the client that waits.
  bool make_room() noexcept {
    const bool made = drop_oldest_stranger();
    if (!made) accept_again = Deadline(kAcceptPause);
    return made;
  }

  static bool is_stranger(const std::unique_ptr<Connection>& c) { return !c->known && !c->closed; }

  bool drop_oldest_stranger() {
    const auto oldest = std::ranges::find_if(connections, is_stranger);
    if (oldest == connections.end() || !(*oldest)->speaks_by.passed()) return false;
    (*oldest)->closed = true;
    return true;
  }

  const Options options;
  const std::shared_ptr<KeyTable> table = std::make_shared<KeyTable>();
  Socket listening;
  const int port;
  const Socket wake;  // an eventfd: a key was set, or it is time to quit
  std::atomic<bool> quit{false};
  std::atomic<std::size_t> clients{0};
  // Used only by the thread.
  std::vector<std::unique_ptr<Connection>> connections;  // in the order of arrival
  std::vector<pollfd> polls;
  std::string buffer;
  Deadline accept_again{milliseconds(0)};
  std::thread thread;
};

TcpStoreServer::TcpStoreServer(Options options) {
  check_token(options.host, options.token);
  impl_ = std::make_unique<Impl>(std::move(options));
}

TcpStoreServer::~TcpStoreServer() = default;

int TcpStoreServer::port() const { return impl_->port; }

std::unique_ptr<Store> TcpStoreServer::store() const {
  return std::make_unique<MemoryStore>(impl_->table, tcp_url(impl_->options.host, port()));
}

void TcpStoreServer::wait_for_clients_to_leave(const Deadline& deadline) const {
  while (impl_->clients > 0 && !deadline.passed()) {
    std::this_thread::sleep_for(milliseconds(2));
  }
}

// --- The client ----------------------------------------------------------------------------------

namespace {

// The server answers a get when its time is over; the answer itself needs a moment.
constexpr milliseconds kAnswerTime{2000};

struct Answer {
  Status status;
  std::string value;

  std::optional<std::string> found() const {
    if (status == Status::nothing) return std::nullopt;
    return value;
  }
};

}  // namespace

struct TcpStore::Impl {
  Impl(std::string h, int p, std::string t, const Deadline& deadline, std::string o,
       bool is_listening)
      : host(std::move(h)),
        port(p),
        token(std::move(t)),
        owner(std::move(o)),
        name(detail::concat("the store ", owner.empty() ? "" : "of ", owner,
                            owner.empty() ? "at " : " at ", tcp_url(host, port))),
        socket(greet(deadline, is_listening)) {}

  // Makes a new connection and sends the token.
  Socket greet(const Deadline& deadline, bool is_listening) const {
    Socket connected = within(name, [&] { return connect_to(host, port, deadline, is_listening); });
    const Answer answer = within("its handshake", [&] {
      return exchange(connected, frame(std::string(kGreeting) + token), deadline);
    });
    WEFT_CHECK(
        answer.status != Status::invalid, InvalidArgument, kOp, name,
        " refuses the token: all ranks need the same InitOptions::token, or WEFT_STORE_TOKEN in "
        "their environment (weftrun sets it)");
    WEFT_CHECK(answer.value == kGreeting, Comm, kOp, name,
               " is none of this version of weft; is something else listening there?");
    return connected;
  }

  Answer exchange(const Socket& socket, const std::string& request,
                  const Deadline& deadline) const {
    send_all(socket, std::as_bytes(std::span(request)), deadline, name);
    std::array<char, sizeof(std::uint32_t) + sizeof(Status)> head;
    recv_all(socket, std::as_writable_bytes(std::span(head)), deadline, name);
    std::string_view rest(head.data(), head.size());
    const std::uint32_t size = *take<std::uint32_t>(rest);
    const Status status = *take<Status>(rest);
    WEFT_CHECK(size >= sizeof(Status) && size <= kMostFrameBytes, Comm, kOp, name,
               " announces an answer of ", size, " bytes; is something else listening there?");
    Answer answer{status, std::string(size - sizeof(Status), '\0')};
    recv_all(socket, std::as_writable_bytes(std::span(answer.value)), deadline, name);
    return answer;
  }

  const std::string host;
  const int port;
  const std::string token;
  const std::string owner;
  const std::string name;
  std::mutex mutex;
  std::condition_variable free;
  bool busy = false;
  std::string failure;  // why the connection is lost for good
  Socket socket;        // held by the present call; empty after one that was cut short
};

// Only one call at a time uses the connection.
class TcpStore::Turn {
 public:
  Turn(Impl& impl, const Deadline& deadline) : impl_(impl) {
    std::unique_lock lock(impl_.mutex);
    const bool mine = impl_.free.wait_until(lock, deadline.at(), [&] { return !impl_.busy; });
    WEFT_CHECK(mine, Timeout, kOp, "another call holds the connection to ", impl_.name,
               "; a thread that waits long should have its own, by duplicate()");
    WEFT_CHECK(impl_.failure.empty(), PeerFailed, kOp, "the connection to ", impl_.name,
               " is of no use since an earlier call failed: ", impl_.failure);
    impl_.busy = true;
  }
  ~Turn() {
    {
      const std::lock_guard lock(impl_.mutex);
      impl_.busy = false;
    }
    impl_.free.notify_one();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  Answer call(Operation operation, const std::string& key, std::string_view rest,
              const Deadline& deadline) {
    std::string payload;
    append(payload, operation);
    append(payload, static_cast<std::uint32_t>(key.size()));
    payload += key;
    payload += rest;
    const Answer answer = guarded_exchange(frame(payload), deadline);
    WEFT_CHECK(answer.status != Status::invalid, InvalidArgument, kOp, impl_.name,
               " refuses: ", answer.value);
    return answer;
  }

 private:
  // After a call that was cut short the connection cannot be used. If the server was only slow, the
  // next call makes a new one; the request itself is not repeated.
  Answer guarded_exchange(const std::string& request, const Deadline& deadline) {
    Socket socket = std::move(impl_.socket);
    try {
      if (!socket.valid()) socket = impl_.greet(deadline, /*is_listening=*/true);
      Answer answer = impl_.exchange(socket, request, deadline);
      impl_.socket = std::move(socket);
      return answer;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::Timeout) {
        const std::lock_guard lock(impl_.mutex);
        impl_.failure = error.what();
      }
      throw;
    }
  }

  Impl& impl_;
};

TcpStore::TcpStore(std::string host, int port, std::string token, const Deadline& deadline,
                   std::string owner) {
  check_token(host, token);
  impl_ = std::make_unique<Impl>(std::move(host), port, std::move(token), deadline,
                                 std::move(owner), /*is_listening=*/false);
}

TcpStore::TcpStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

TcpStore::~TcpStore() = default;

std::unique_ptr<Store> TcpStore::duplicate() const {
  std::unique_ptr<TcpStore> copy(new TcpStore(
      std::make_unique<Impl>(impl_->host, impl_->port, impl_->token, Deadline(timeout()),
                             impl_->owner, /*is_listening=*/true)));
  copy->set_timeout(timeout());
  return copy;
}

std::string TcpStore::describe() const { return tcp_url(impl_->host, impl_->port); }

void TcpStore::do_set(const std::string& key, std::string_view value, const Deadline& deadline) {
  Turn(*impl_, deadline).call(Operation::set, key, value, deadline);
}

std::optional<std::string> TcpStore::do_get(const std::string& key, const Deadline& deadline) {
  Turn turn(*impl_, deadline);
  const milliseconds left = deadline.left();
  std::string time;
  append(time, static_cast<std::int64_t>(left.count()));
  return turn.call(Operation::get, key, time, Deadline(left + kAnswerTime)).found();
}

std::optional<std::string> TcpStore::do_try_get(const std::string& key, const Deadline& deadline) {
  return Turn(*impl_, deadline).call(Operation::try_get, key, {}, deadline).found();
}

std::int64_t TcpStore::do_add(const std::string& key, std::int64_t delta,
                              const Deadline& deadline) {
  std::string number;
  append(number, delta);
  const Answer answer = Turn(*impl_, deadline).call(Operation::add, key, number, deadline);
  std::string_view bytes = answer.value;
  const auto sum = take<std::int64_t>(bytes);
  WEFT_CHECK(sum, Comm, kOp, impl_->name, " gives a sum of ", answer.value.size(), " bytes");
  return *sum;
}

std::string TcpStore::do_set_once(const std::string& key, std::string_view value,
                                  const Deadline& deadline) {
  return Turn(*impl_, deadline).call(Operation::set_once, key, value, deadline).value;
}

bool TcpStore::do_erase(const std::string& key, const Deadline& deadline) {
  return Turn(*impl_, deadline).call(Operation::erase, key, {}, deadline).status == Status::ok;
}

}  // namespace weft::comm
