#include "weft/learn/judge/ranks.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "weft/comm/store/store.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/parallel.h"
#include "weft/learn/judge/verdict.h"

namespace weft::learn {
namespace {

// Ends a rank when one has failed.
struct Stopped : Error {
  Stopped() : Error(ErrorCode::Comm, "learn", "a rank has failed", __FILE__, __LINE__) {}
};

std::string numbers(std::size_t bytes) {
  return detail::concat(bytes / sizeof(float), bytes == sizeof(float) ? " number" : " numbers");
}

bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  return std::max(a.data(), b.data()) < std::min(a.data() + a.size(), b.data() + b.size());
}

// A send or a receive that a rank has begun.
struct Side {
  bool sends;
  int other;
  std::span<std::byte> bytes;  // of a send: not written
  int round;                   // when it began; when it is done, when it ended
  bool done = false;
};

struct Rank {
  std::vector<Side> sides;  // of the call in which it waits
  bool waits = false, returned = false;
  bool at_its_end = false;  // of a group: f has returned
  std::size_t calls = 0;    // of a group: operations that f has called
  Traffic traffic;
};

// Where the ranks meet. The rank that brings the second side of a message copies it, under the
// lock. So only another rank can let a waiting rank go on: when all wait, nothing more will happen.
class Hub {
 public:
  Hub(int n, std::string advice)
      : advice_(std::move(advice)), ranks_(n), sends_(n * n), receives_(n * n) {}

  void exchange(int rank, std::span<const comm::Outgoing> out, std::span<const comm::Incoming> in) {
    std::unique_lock lock(mutex_);
    if (ended_) throw Stopped();
    Rank& me = ranks_[rank];
    try {
      begin(rank, out, in);
    } catch (const Wrong&) {
      // Under the lock: nobody may write to the memory of a rank that has left.
      end(std::current_exception());
      throw Stopped();
    }
    changed_.wait(lock, [&] { return ended_ || all_done(me); });
    if (!all_done(me)) throw Stopped();
    me.waits = false;
    for (const Side& side : me.sides) {
      me.traffic.rounds = std::max(me.traffic.rounds, side.round);
      if (!side.sends) continue;
      me.traffic.sent.push_back(
          {me.traffic.steps, side.other, static_cast<std::int64_t>(side.bytes.size()), side.round});
    }
    ++me.traffic.steps;
  }

  void leave(int rank) {
    const std::lock_guard lock(mutex_);
    ranks_[rank].returned = true;
    changed_.notify_all();
    if (ended_) return;
    try {
      look_for_deadlock();
    } catch (const Wrong&) {  // the others wait for what this rank never did
      end(std::current_exception());
    }
  }

  // In a group: f has returned, but what it began may still run. Then the rank leaves.
  void come_to_end(int rank) {
    const std::lock_guard lock(mutex_);
    ranks_[rank].at_its_end = true;
  }
  bool is_at_end(int rank) {
    const std::lock_guard lock(mutex_);
    return ranks_[rank].at_its_end;
  }

  void call(int rank) {
    const std::lock_guard lock(mutex_);
    ++ranks_[rank].calls;
  }
  std::vector<std::size_t> calls() {
    const std::lock_guard lock(mutex_);
    std::vector<std::size_t> all;
    for (const Rank& rank : ranks_) all.push_back(rank.calls);
    return all;
  }
  void begin_collective(int rank, const Collective& collective) {
    // So that a solution that does not wait for its work reads the old numbers.
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const std::lock_guard lock(mutex_);
    ranks_[rank].traffic.collectives.push_back(collective);
    changed_.notify_all();
  }
  // `what` says which memory.
  void refuse_write(int rank, const char* what) {
    fail(std::make_exception_ptr(Wrong(detail::concat(
        "rank ", rank, " writes to what its ", what,
        ": what comes out is luck. Call wait() of its work first, or write before it begins"))));
    throw Stopped();
  }
  bool wait_until_begun(int rank, std::size_t count, std::string_view name) {
    const auto begun = [&] {
      const std::vector<Collective>& all = ranks_[rank].traffic.collectives;
      return std::ranges::count_if(all, [&](const Collective& one) {
               return name.empty() || one.name == name;
             }) >= static_cast<std::ptrdiff_t>(count);
    };
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(3), [&] { return ended_ || begun(); });
    return begun();
  }

  // The first failure counts.
  void fail(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    end(std::move(error));
  }

  // Waits for all ranks; false if some have not returned in time.
  bool wait_for_all() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] {
      for (const Rank& rank : ranks_) {
        if (!rank.returned) return false;
      }
      return true;
    });
  }

  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

  std::vector<Traffic> traffic() {
    std::vector<Traffic> result;
    for (Rank& rank : ranks_) result.push_back(std::move(rank.traffic));
    return result;
  }

  // Which ranks run on, and since when.
  std::string who_runs() {
    const std::lock_guard lock(mutex_);
    std::string text;
    for (int r = 0; r < size(); ++r) {
      if (ranks_[r].returned) continue;
      const Traffic& traffic = ranks_[r].traffic;
      text += detail::concat(text.empty() ? "" : ", ", "rank ", r,
                             ranks_[r].waits ? " waits for another rank"
                             : traffic.steps == 0
                                 ? " has sent and received nothing yet"
                                 : detail::concat(" runs on after its call ", traffic.steps));
    }
    return text;
  }

 private:
  int size() const { return static_cast<int>(ranks_.size()); }

  void end(std::exception_ptr error) {
    if (!ended_) error_ = std::move(error);
    ended_ = true;
    changed_.notify_all();
  }

  void begin(int rank, std::span<const comm::Outgoing> out, std::span<const comm::Incoming> in) {
    Rank& me = ranks_[rank];
    me.sides.clear();
    for (const auto& [to, bytes] : out) {
      me.sides.push_back(
          {true, to, {const_cast<std::byte*>(bytes.data()), bytes.size()}, me.traffic.rounds});
    }
    for (const auto& [from, bytes] : in) {
      me.sides.push_back({false, from, bytes, me.traffic.rounds});
      for (const comm::Outgoing& sent : out) {
        require(!overlap(sent.bytes, bytes), "rank ", rank,
                " receives over what it sends in the same step: let it receive into a vector of "
                "its own");
      }
    }
    for (Side& side : me.sides) {
      check_other(rank, side);
      const auto [from, to] =
          side.sends ? std::pair(rank, side.other) : std::pair(side.other, rank);
      (side.sends ? sends_ : receives_)[from * size() + to].push_back(&side);
      match(from, to);
    }
    me.waits = true;
    look_for_deadlock();
  }

  void check_other(int rank, const Side& side) const {
    const char* what = side.sends ? " sends to " : " receives from ";
    require(side.other >= 0 && side.other < size(), "rank ", rank, what, "rank ", side.other,
            ", but the ranks are 0 to ", size() - 1, advice_);
    require(
        side.other != rank, "rank ", rank, what, "itself: what is its own is already there",
        size() == 1 ? ", and a single rank has nobody to talk to: it should return at once" : "");
  }

  void match(int from, int to) {
    std::deque<Side*>&out = sends_[from * size() + to], &in = receives_[from * size() + to];
    while (!out.empty() && !in.empty()) {
      Side &send = *out.front(), &receive = *in.front();
      require(
          send.bytes.size() == receive.bytes.size(), "rank ", from, " sends ",
          numbers(send.bytes.size()), " to rank ", to, ", which expects ",
          numbers(receive.bytes.size()),
          same_calls(": do both mean the same part of x? The room for what comes must be as long "
                     "as that part: std::span(received).first(size) cuts it, and a static "
                     "vector is still as long as in the call before"));
      if (!send.bytes.empty()) {
        std::memmove(receive.bytes.data(), send.bytes.data(), send.bytes.size());
      }
      send.round = receive.round = std::max(send.round, receive.round) + 1;
      send.done = receive.done = true;
      out.pop_front();
      in.pop_front();
      changed_.notify_all();
    }
  }

  static std::string from_root(const Collective& collective) {
    return collective.root < 0 ? "" : detail::concat(" from rank ", collective.root);
  }

  // With groups: in which collective each rank is; without: the other hint.
  std::string same_calls(const char* else_) const {
    std::string text;
    for (int r = 0; r < size(); ++r) {
      const std::vector<Collective>& begun = ranks_[r].traffic.collectives;
      if (begun.empty()) continue;
      text += detail::concat(text.empty() ? ": " : ", ", "rank ", r, " is in collective ",
                             begun.size(), " (", begun.back().name, " of ", begun.back().bytes,
                             " bytes", from_root(begun.back()), ')');
    }
    return text.empty() ? else_ : text + ": all ranks must make the same calls in the same order";
  }

  static bool all_done(const Rank& rank) {
    for (const Side& side : rank.sides) {
      if (!side.done) return false;
    }
    return true;
  }

  void look_for_deadlock() const {
    std::string waiting;
    for (int r = 0; r < size(); ++r) {
      if (ranks_[r].returned) continue;
      if (!ranks_[r].waits || all_done(ranks_[r])) return;
      for (const Side& side : ranks_[r].sides) {
        if (side.done) continue;
        waiting += detail::concat(waiting.empty() ? "" : "; ", "rank ", r,
                                  side.sends ? " waits until rank " : " waits for ");
        if (side.sends) {
          waiting += detail::concat(side.other, " receives ", numbers(side.bytes.size()));
        } else {
          waiting += detail::concat(numbers(side.bytes.size()), " from rank ", side.other);
        }
        if (ranks_[side.other].returned) waiting += ", which has returned";
      }
    }
    require(waiting.empty(), "deadlock: ", waiting, same_calls(""));
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::string advice_;
  std::vector<Rank> ranks_;
  std::vector<std::deque<Side*>> sends_, receives_;  // by sender * n + receiver
  bool ended_ = false;
  std::exception_ptr error_;
};

// What a rank's solution has asked for and is not known to be done, in order. Thread-safe.
class Pending {
 public:
  using Bytes = std::vector<std::byte>;

  void add(const std::string& name, const comm::Buffer& x, const comm::Buffer& y) {
    const std::lock_guard lock(mutex_);
    One one{name, x.span(), y.span(), std::nullopt};
    // If an earlier operation may still write to x, the present numbers are not those with which
    // this one begins.
    const auto may_write = [&](const One& earlier) { return earlier.may_write(one.x); };
    const bool waits = std::ranges::any_of(all_, may_write) || (running_ && may_write(*running_));
    if ((name == "all_reduce" || name == "broadcast") && !waits) {
      one.before = Bytes(one.x.begin(), one.x.end());
    }
    all_.push_back(std::move(one));
  }
  // The first one of that name and x has begun, so those before it are done. Returns what x was
  // when it was asked for, if that is known.
  std::optional<Bytes> begin(const std::string& name, const comm::Buffer& x) {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find_if(
        all_, [&](const One& one) { return one.name == name && one.x.data() == x.data; });
    if (found == all_.end()) return std::nullopt;
    running_ = *found;
    all_.erase(all_.begin(), found + 1);
    return running_->before;
  }
  void end() {
    const std::lock_guard lock(mutex_);
    running_.reset();
  }

 private:
  struct One {
    std::string name;
    std::span<std::byte> x, y;
    std::optional<Bytes> before;

    bool may_write(std::span<const std::byte> other) const {
      return overlap(x, other) || overlap(y, other);
    }
  };

  std::mutex mutex_;
  std::optional<One> running_;
  std::deque<One> all_;
};

class JudgedBackend final : public comm::Backend {
 public:
  JudgedBackend(int rank, int size, Hub& hub) : Backend(rank, size), hub_(hub) {}

  const char* name() const override { return "judge"; }
  void exchange(std::span<const comm::Outgoing> out, std::span<const comm::Incoming> in,
                const comm::Deadline&) override {
    hub_.exchange(rank(), out, in);
  }
  void abort() noexcept override {}
  void queued(const char* name, const comm::Buffer& x, const comm::Buffer& y) override {
    hub_.call(rank());
    pending_.add(name, x, y);
  }

  void broadcast(const comm::Buffer& x, int root, const comm::Deadline& deadline) override {
    const std::optional<Pending::Bytes> before = pending_.begin("broadcast", x);
    hub_.begin_collective(rank(), {"broadcast", static_cast<std::int64_t>(x.bytes()), root});
    Backend::broadcast(x, root, deadline);
    if (before && rank() == root && !std::ranges::equal(*before, x.span())) {
      hub_.refuse_write(rank(), "broadcast sends");
    }
    pending_.end();
  }
  void all_reduce(const comm::Buffer& x, comm::ReduceOp op,
                  const comm::Deadline& deadline) override {
    const std::optional<Pending::Bytes> before = pending_.begin("all_reduce", x);
    hub_.begin_collective(rank(), {"all_reduce", static_cast<std::int64_t>(x.bytes())});
    Pending::Bytes sum(x.span().begin(), x.span().end());
    Backend::all_reduce({sum.data(), x.count, x.dtype}, op, deadline);
    if (before && !std::ranges::equal(*before, x.span())) {
      hub_.refuse_write(rank(), "all_reduce is adding up");
    }
    std::ranges::copy(sum, x.span().begin());
    pending_.end();
  }
  void all_gather(const comm::Buffer& x, const comm::Buffer& y,
                  const comm::Deadline& deadline) override {
    hub_.begin_collective(rank(), {"all_gather", static_cast<std::int64_t>(y.bytes())});
    Backend::all_gather(x, y, deadline);
  }
  void reduce_scatter(const comm::Buffer& x, const comm::Buffer& y, comm::ReduceOp op,
                      const comm::Deadline& deadline) override {
    hub_.begin_collective(rank(), {"reduce_scatter", static_cast<std::int64_t>(x.bytes())});
    Backend::reduce_scatter(x, y, op, deadline);
  }
  // So that a group's empty() is an operation like the others, and comes after those before it.
  bool has_memory() const override { return true; }
  // Also the last operation of a group: what was queued before it is done.
  intrusive_ptr<Storage> allocate(std::size_t bytes, const comm::Deadline& deadline) override {
    if (hub_.is_at_end(rank())) hub_.leave(rank());
    return Backend::allocate(bytes, deadline);
  }

 private:
  Hub& hub_;
  Pending pending_;
};

// The hub and rank of the thread, in on_groups().
thread_local Hub* hub_here = nullptr;
thread_local int rank_here = 0;

// What a rank's exception says to the learner.
std::exception_ptr as_wrong(int rank) {
  try {
    throw;
  } catch (const Wrong&) {
    return std::current_exception();
  } catch (const NotYet&) {
    return std::current_exception();
  } catch (const std::bad_alloc&) {
    return std::make_exception_ptr(Wrong(detail::concat("rank ", rank, ": ", kTooMuchMemory)));
  } catch (const std::exception& error) {
    return std::make_exception_ptr(
        Wrong(detail::concat("rank ", rank, " threw an exception: ", text_of(error))));
  } catch (...) {
    return std::make_exception_ptr(
        Wrong(detail::concat("rank ", rank, " threw something that is no std::exception")));
  }
}

// Runs f(rank, hub) as ranks 0 to n - 1.
std::vector<Traffic> run(int n, const std::function<void(int rank, Hub& hub)>& f,
                         const std::string& advice = "") {
  Hub hub(n, advice);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&hub, &f, rank] {
      be_rank(rank);
      try {
        f(rank, hub);
      } catch (...) {
        hub.fail(as_wrong(rank));
      }
      hub.leave(rank);
    });
  }
  if (!hub.wait_for_all()) {
    end_wrong(detail::concat("not all ranks have returned after ", kPatience.count(),
                             " s: ", hub.who_runs(), ". Is there a loop that does not end?"));
  }
  for (std::thread& thread : threads) thread.join();
  hub.rethrow();
  return hub.traffic();
}

}  // namespace

std::int64_t Traffic::bytes() const {
  return std::accumulate(sent.begin(), sent.end(), std::int64_t{0},
                         [](std::int64_t sum, const Sent& message) { return sum + message.bytes; });
}

std::vector<Traffic> on_ranks(int n, const std::function<void(Messages& me)>& f,
                              const std::string& advice) {
  const auto of_rank = [&](int rank, Hub& hub) {
    JudgedBackend backend(rank, n, hub);
    Messages me(backend, comm::Deadline(kPatience));
    f(me);
  };
  return run(n, of_rank, advice);
}

std::vector<Traffic> on_groups(int n, const std::function<void(comm::ProcessGroup& group)>& f) {
  comm::MemoryStore store;
  return run(n, [&](int rank, Hub& hub) {
    bool made = false;
    const auto make = [&](const auto&, int r, int size, const auto&) {
      // A second backend would take the first one's place in the hub.
      if (std::exchange(made, true)) {
        hub.fail(std::make_exception_ptr(Wrong(
            detail::concat("rank ", rank, " makes another group: one group is enough here"))));
        throw Stopped();
      }
      return std::make_unique<JudgedBackend>(r, size, hub);
    };
    comm::ProcessGroup group(make, store.duplicate(), rank, n);
    hub_here = &hub, rank_here = rank;
    set_num_threads(1);
    try {
      f(group);
      hub.come_to_end(rank);
      group.empty({1});
    } catch (...) {
      hub.fail(as_wrong(rank));  // before the group waits for its thread
      throw;
    }
  });
}

bool wait_until_begun(std::size_t count, std::string_view name) {
  return hub_here->wait_until_begun(rank_here, count, name);
}
std::vector<std::size_t> calls_of_ranks() { return hub_here->calls(); }

}  // namespace weft::learn
