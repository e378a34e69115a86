// Gloo's connections, threads and buffers under weft's collectives.
//
// Each message is announced first: its number of bytes and the rank's fingerprint go to a slot for
// announcements. The bytes themselves travel on a slot whose number contains the number of bytes.
// So if the two ranks do not agree on it, no bytes move, and the receiver finds another number
// announced. (Gloo's own check ends the process.)
//
// When a connection breaks, Gloo tells a thread whose receive has not begun, but neither one in the
// middle of a message nor one that sends: these would wait until their deadline. So a watcher
// thread waits for messages that nobody sends, from all ranks, and wakes the others when that wait
// fails.

#include <gloo/transport/context.h>
#include <gloo/transport/tcp/device.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <exception>
#include <future>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "weft/comm/backend/backends.h"
#include "weft/comm/backend/exchange_state.h"
#include "weft/comm/backend/rank_numbers.h"
#include "weft/comm/store/failure.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/phase.h"
#include "weft/core/runtime/thread_name.h"
#include "weft/core/trace/trace.h"

namespace weft::comm {
namespace {

constexpr char kName[] = "gloo";

using gloo::transport::UnboundBuffer;
using std::chrono::milliseconds;

// Longer than any process lives.
constexpr milliseconds kForever = std::chrono::hours(100'000);

// --- Signals and scheduling of Gloo's threads ----------------------------------------------------

// Gloo writes to broken connections, which raises SIGPIPE in the writing thread. While this object
// lives, SIGPIPE is blocked in its thread; in threads that are started meanwhile it stays blocked.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &sigpipe(), &before_);
  }
  ~NoSigpipe() {
    const timespec now = {};
    if (!was_pending_) sigtimedwait(&sigpipe(), nullptr, &now);  // must not come later
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  static const sigset_t& sigpipe() {
    static const sigset_t set = [] {
      sigset_t only;
      sigemptyset(&only);
      sigaddset(&only, SIGPIPE);
      return only;
    }();
    return set;
  }

  sigset_t before_;
  bool was_pending_;
};

// While it lives, new threads are SCHED_BATCH. Gloo's thread wakes at every byte; this way it does
// not interrupt the thread that has given it work. Saves a third of a small message's time.
class BatchThreads {
 public:
  BatchThreads() : policy_(sched_getscheduler(0)) {
    if (policy_ == SCHED_OTHER) set(SCHED_BATCH);
  }
  ~BatchThreads() {
    if (policy_ == SCHED_OTHER) set(SCHED_OTHER);
  }
  BatchThreads(const BatchThreads&) = delete;
  BatchThreads& operator=(const BatchThreads&) = delete;

 private:
  static void set(int policy) {
    const sched_param priority = {};
    sched_setscheduler(0, policy, &priority);
  }

  int policy_;
};

// --- Meeting -------------------------------------------------------------------------------------

// The addresses on which the other ranks reach this one, in the order of the ranks; all have the
// same length.
std::string addresses_of(gloo::transport::Context& context) {
  std::string all;
  for (int r = 0; r < context.size; ++r) {
    if (r == context.rank) continue;
    const std::vector<char> bytes = context.createPair(r)->address().bytes();
    all.append(bytes.begin(), bytes.end());
  }
  return all;
}

// The address for rank `rank` in what rank `of` has written.
std::vector<char> address_in(const std::string& all, int rank, int of, int size) {
  const std::size_t length = all.size() / static_cast<std::size_t>(size - 1);
  const std::string part =
      all.substr(length * static_cast<std::size_t>(rank - (rank > of)), length);
  return {part.begin(), part.end()};
}

// A connection that is closed before Gloo has accepted it ends the process at its other end: Gloo's
// own thread then asks who is there (getpeername()) and throws, where nobody catches. So a rank
// that gives up first waits long enough for the others' threads to run once, even on a loaded
// machine.
void let_others_accept() { std::this_thread::sleep_for(milliseconds(200)); }

// Gloo's connect() waits for the other rank and checks nothing else, so it runs in a thread of its
// own. Closing the connection ends it.
void connect_pairs(gloo::transport::Context& context,
                   const std::vector<std::vector<char>>& addresses, const Deadline& deadline) {
  std::atomic<int> rank{context.rank == 0 ? 1 : 0};
  std::atomic<bool> ending{false};
  auto connecting = std::async(std::launch::async, [&] {
    for (int r = 0; r < context.size && !ending; ++r) {
      if (r == context.rank) continue;
      rank = r;
      context.getPair(r)->connect(addresses[r]);
    }
  });
  try {
    while (connecting.wait_for(deadline.left()) != std::future_status::ready) {
      WEFT_CHECK(!deadline.passed(), Timeout, kName, "rank ", number_in_run(rank),
                 " has not connected");
    }
  } catch (...) {
    ending = true;
    let_others_accept();
    while (connecting.wait_for(milliseconds(10)) != std::future_status::ready) {
      context.getPair(rank)->close();
    }
    throw;
  }
  try {
    connecting.get();
  } catch (const std::exception& error) {
    let_others_accept();
    WEFT_THROW(PeerFailed, kName, "cannot connect to rank ", number_in_run(rank), ": ",
               error.what());
  }
}

std::string address_key(int rank) { return "addresses/" + std::to_string(rank); }

// Its addresses are in the store for the other ranks.
std::shared_ptr<gloo::transport::Context> listening_context(Store& store,
                                                            const std::string& local_addr, int rank,
                                                            int size) {
  const BatchThreads batch;
  try {
    const std::shared_ptr<gloo::transport::Context> context =
        gloo::transport::tcp::CreateDevice(local_addr.c_str())->createContext(rank, size);
    context->setTimeout(kForever);
    store.set(address_key(rank), addresses_of(*context));
    return context;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    WEFT_THROW(Comm, kName, "cannot listen on ", local_addr, ": ", error.what());
  }
}

void connect_mesh(gloo::transport::Context& context, Store& store, const Deadline& deadline) {
  const int rank = context.rank, size = context.size;
  const auto told = [&](int by, const std::string& key) {
    return within(detail::concat("meeting rank ", number_in_run(by)),
                  [&] { return store.get(key, deadline); });
  };
  std::vector<std::vector<char>> addresses(size);
  for (int r = 0; r < size; ++r) {
    if (r != rank) addresses[r] = address_in(told(r, address_key(r)), rank, r, size);
  }
  // No rank connects before all are ready, since one may leave while it waits for the others.
  const auto ready_key = [](int of) { return "ready/" + std::to_string(of); };
  store.set(ready_key(rank), "");
  try {
    for (int r = 0; r < size; ++r) told(r, ready_key(r));
  } catch (...) {
    let_others_accept();
    throw;
  }
  connect_pairs(context, addresses, deadline);
}

// --- Messages ------------------------------------------------------------------------------------

// Slots; messages of one slot between two ranks keep their order. An empty message is only
// announced.
constexpr std::uint64_t kAnnounceSlot = 0, kNeverSlot = 1;
std::uint64_t slot_of(std::size_t bytes) { return kNeverSlot + bytes; }

// Sending to and receiving from one rank. These buffers cover the whole memory, and offsets in them
// are addresses. They live as long as the backend, so that abort() can wake a waiting thread at any
// time.
struct Channel {
  std::unique_ptr<UnboundBuffer> announcements, bytes;
  std::atomic<bool> lost{false};
};

struct Announcement {
  std::uint64_t bytes = 0, fingerprint = 0;
};
static_assert(sizeof(Announcement) == 16);

// What has been given to Gloo and has not been waited for: a message's announcement, or its bytes.
struct Pending {
  int rank;
  bool outgoing;
  bool announcement;
  std::size_t bytes;  // of the message
  const Announcement* given;
};

struct Held {
  Outgoing message;
  const Announcement* given;
  ThinLinks::Clock::time_point passes_link;
};

class GlooBackend final : public Backend {
 public:
  GlooBackend(int rank, int size, std::shared_ptr<gloo::transport::Context> context)
      : Backend(rank, size), context_(std::move(context)), channels_(size) {
    const NoSigpipe no_sigpipe;
    for (int r = 0; r < size; ++r) {
      if (r == rank) continue;
      for (auto* buffer : {&channels_[r].announcements, &channels_[r].bytes}) {
        *buffer = context_->createUnboundBuffer(nullptr, std::numeric_limits<std::size_t>::max());
      }
    }
    watcher_ = std::thread([this] { watch(); });
  }

  ~GlooBackend() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      if (endless_) endless_->abortWaitRecv();
    }
    watcher_.join();
  }

  const char* name() const override { return kName; }
  void set_links(const ThinLinks& links) override { links_ = links; }

  void exchange(std::span<const Outgoing> out, std::span<const Incoming> in,
                const Deadline& deadline) override {
    if (out.empty() && in.empty()) return;
    state_.run([&] {
      const NoSigpipe no_sigpipe;
      try {
        post(out, in);
        post_held(deadline);
        while (!pending_.empty()) wait_for_one(deadline);
      } catch (...) {
        close();  // nothing may arrive later: the memory belongs to the caller again
        throw;
      }
      for (const Outgoing& message : out) traffic_.bytes_sent += message.bytes.size();
      for (const Incoming& message : in) traffic_.bytes_received += message.bytes.size();
      traffic_.messages_sent += static_cast<std::int64_t>(out.size());
    });
  }

  void abort() noexcept override {
    state_.abort();
    wake();
    close();
  }

  // A thread that does not wait yet returns at once from its next wait.
  void wake() noexcept override {
    for (Channel& channel : channels_) {
      for (UnboundBuffer* buffer : {channel.announcements.get(), channel.bytes.get()}) {
        if (!buffer) continue;
        buffer->abortWaitRecv();
        buffer->abortWaitSend();
      }
    }
  }

 private:
  void post(std::span<const Outgoing> out, std::span<const Incoming> in) {
    pending_.clear();
    held_.clear();
    given_.resize(in.size() + out.size());  // not moved until all is done: Gloo has addresses in it
    Announcement* given = given_.data();
    for (const auto& [from, bytes] : in) post(from, false, bytes, given++);
    for (const auto& [to, bytes] : out) {
      *given = {bytes.size(), fingerprint()};
      const auto passes_link = links_.passed(to, bytes.size());
      if (passes_link != ThinLinks::Clock::time_point()) {
        held_.push_back({{to, bytes}, given++, passes_link});
      } else {
        post(to, true, bytes, given++);
      }
    }
  }

  // Posts the messages that thin links hold back; meanwhile Gloo's thread moves the others.
  void post_held(const Deadline& deadline) {
    std::ranges::sort(held_, {}, [](const Held& h) { return std::pair(h.passes_link, h.given); });
    for (const auto& [message, given, passes_link] : held_) {
      const int to = message.to;
      while (const auto left = held_for(passes_link)) {
        if (state_.aborted()) state_.throw_aborted();
        if (channels_[to].lost) state_.throw_closed(to);
        if (first_of_lost() != pending_.end()) {
          wait_for_one(deadline);  // throws, or takes what had come before
          continue;
        }
        if (deadline.passed()) state_.throw_timeout(to, "taken", "0", message.bytes.size());
        std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(*left, milliseconds(5)));
      }
      post(to, true, message.bytes, given);
    }
  }

  void post(int rank, bool outgoing, std::span<const std::byte> bytes, const Announcement* given) {
    start({rank, outgoing, true, bytes.size(), given}, kAnnounceSlot,
          std::as_bytes(std::span(given, 1)));
    if (bytes.empty()) return;
    start({rank, outgoing, false, bytes.size(), given}, slot_of(bytes.size()), bytes);
  }

  void start(const Pending& pending, std::uint64_t slot, std::span<const std::byte> bytes) {
    const auto offset = reinterpret_cast<std::uintptr_t>(bytes.data());
    try {
      if (pending.outgoing) {
        buffer_of(pending).send(pending.rank, slot, offset, bytes.size());
      } else {
        buffer_of(pending).recv(pending.rank, slot, offset, bytes.size());
      }
    } catch (const std::exception&) {
      state_.throw_closed(pending.rank);
    }
    pending_.push_back(pending);
  }

  UnboundBuffer& buffer_of(const Pending& pending) {
    Channel& channel = channels_[pending.rank];
    return *(pending.announcement ? channel.announcements : channel.bytes);
  }

  std::vector<Pending>::iterator first_of_lost() {
    return std::ranges::find_if(
        pending_, [&](const Pending& pending) { return channels_[pending.rank].lost.load(); });
  }

  // Waits for the first pending transfer, but checks those of lost ranks first. Returns without a
  // result when it has been woken.
  void wait_for_one(const Deadline& of_call) {
    const Deadline deadline = of_call;  // a copy: the other may move while Gloo reports a timeout
    auto next = first_of_lost();
    const bool lost = next != pending_.end();
    if (!lost) next = pending_.begin();
    const milliseconds left = lost ? milliseconds(0) : deadline.left();
    bool through = false;
    try {
      UnboundBuffer& buffer = buffer_of(*next);
      through = next->outgoing ? buffer.waitSend(nullptr, left) : buffer.waitRecv(nullptr, left);
    } catch (const std::exception&) {
      if (lost || !deadline.passed()) state_.throw_closed(next->rank);
      state_.throw_timeout(next->rank, next->outgoing ? "taken" : "sent",
                           next->announcement ? "0" : "not all", next->bytes);
    }
    if (state_.aborted()) state_.throw_aborted();
    if (!through) return;
    if (!next->outgoing) {
      compare_fingerprint(next->rank, next->given->fingerprint);
      state_.check_bytes(next->rank, next->given->bytes, rank(), next->bytes);
    }
    pending_.erase(next);
  }

  // Runs until the backend is destroyed, and finds out which ranks are lost.
  void watch() {
    set_thread_name("gloo watch");
    for (;;) {
      const auto endless = context_->createUnboundBuffer(nullptr, 0);
      {
        std::lock_guard lock(mutex_);
        if (stopping_) return;
        endless_ = endless.get();
      }
      for (int r = 0; r < size(); ++r) {
        if (r == rank() || channels_[r].lost) continue;
        try {
          endless->recv(r, kNeverSlot, 0, 0);
        } catch (const std::exception&) {
          channels_[r].lost = true;
          wake();
        }
      }
      try {
        endless->waitRecv(nullptr, kForever);
      } catch (const std::exception&) {
      }
      std::lock_guard lock(mutex_);
      endless_ = nullptr;
    }
  }

  void close() noexcept {
    for (int r = 0; r < size(); ++r) {
      if (r != rank()) context_->getPair(r)->close();
    }
  }

  const std::shared_ptr<gloo::transport::Context> context_;
  ExchangeState state_{kName};
  std::vector<Channel> channels_;  // this rank's own is empty
  std::vector<Pending> pending_;
  std::vector<Announcement> given_;
  std::vector<Held> held_;
  ThinLinks links_;

  std::mutex mutex_;
  bool stopping_ = false;
  UnboundBuffer* endless_ = nullptr;  // what the watcher waits for
  std::thread watcher_;
};

}  // namespace

BackendMaker gloo_backend(std::string local_addr) {
  return [local_addr = std::move(local_addr)](const std::shared_ptr<Store>& store, int rank,
                                              int size, const Deadline& deadline) {
    const NoSigpipe no_sigpipe;
    const auto context = listening_context(*store, local_addr, rank, size);
    fault_point();
    return closing_late(context, [&] {
      connect_mesh(*context, *store, deadline);
      return std::make_unique<GlooBackend>(rank, size, context);
    });
  };
}

}  // namespace weft::comm
