// Ranks that are threads of one process: the receiver copies from the sender's memory.
//
// All of them share a Hub. Rank 0 makes it and writes its number into the store, by which the
// others find it. A sender puts its messages into the hub and stays in exchange() until they have
// been copied, so they can stay in its own memory.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/comm/backend/backends.h"
#include "weft/comm/backend/exchange_state.h"
#include "weft/comm/backend/random_number.h"
#include "weft/comm/backend/rank_numbers.h"
#include "weft/core/base/error.h"

namespace weft::comm {
namespace {

constexpr char kName[] = "threads";

using Lock = std::unique_lock<std::mutex>;

struct Message {
  int to;
  std::span<const std::byte> bytes;
  std::uint64_t fingerprint;  // of the sender, then of the receiver if it refused the message
  enum class State { waiting, being_copied, done, refused } state = State::waiting;
  std::size_t expected = 0;  // bytes that the receiver expects, if it refused the message
  ThinLinks::Clock::time_point passes_link = {};
};

struct Hub {
  explicit Hub(int n) : size(n), ranks(n), boxes(static_cast<std::size_t>(n) * n) {}

  // The messages of rank `from` for rank `to`, in the order in which they are to be taken.
  std::vector<Message*>& box(int from, int to) { return boxes[from * size + to]; }

  struct Rank {
    std::condition_variable changed;  // something that this rank may wait for has changed
    bool here = false, gone = false;
  };

  const int size;
  std::mutex mutex;  // guards everything below, but not the bytes of the messages
  std::vector<Rank> ranks;
  std::vector<std::vector<Message*>> boxes;
};

// The hubs of this process by number. A number from the store is looked up here, so that the hub of
// another process, or one that has been destroyed, is never used.
class Hubs {
 public:
  static std::uint64_t add(const std::shared_ptr<Hub>& hub) {
    const std::uint64_t number = random_number();
    Hubs& all = instance();
    std::lock_guard lock(all.mutex_);
    std::erase_if(all.hubs_, [](const auto& entry) { return entry.second.expired(); });
    all.hubs_[number] = hub;
    return number;
  }

  static std::shared_ptr<Hub> find(std::uint64_t number) {
    Hubs& all = instance();
    std::lock_guard lock(all.mutex_);
    const auto found = all.hubs_.find(number);
    return found == all.hubs_.end() ? nullptr : found->second.lock();
  }

 private:
  // Never destroyed: ranks may meet in the destructor of a static object.
  static Hubs& instance() {
    static auto* const hubs = new Hubs;
    return *hubs;
  }

  std::mutex mutex_;
  std::map<std::uint64_t, std::weak_ptr<Hub>> hubs_;
};

// Returns when all ranks are there. Rank 0 waits too: at first it is the only owner of the hub.
std::shared_ptr<Hub> meet(Store& store, int rank, int size, const Deadline& deadline) {
  std::shared_ptr<Hub> hub;
  if (rank == 0) {
    hub = std::make_shared<Hub>(size);
    store.set("hub", std::to_string(Hubs::add(hub)));
  } else {
    hub = Hubs::find(std::stoull(store.get("hub", deadline)));
    WEFT_CHECK(hub, Comm, kName, "rank ", number_in_run(0), " is gone, or is no thread of rank ",
               number_in_run(rank), "'s process; between processes use gloo, ring or shm");
  }
  Lock lock(hub->mutex);
  WEFT_CHECK(!std::exchange(hub->ranks[rank].here, true), Comm, kName, "rank ", number_in_run(rank),
             " is there twice");
  for (Hub::Rank& other : hub->ranks) other.changed.notify_one();
  const auto missing = [&] {
    const auto first = std::find_if(hub->ranks.begin(), hub->ranks.end(),
                                    [](const Hub::Rank& other) { return !other.here; });
    return static_cast<int>(first - hub->ranks.begin());
  };
  while (missing() < size) {
    WEFT_CHECK(!deadline.passed(), Timeout, kName, "rank ", number_in_run(missing()),
               " has not come");
    hub->ranks[rank].changed.wait_for(lock, deadline.left());
  }
  return hub;
}

class ThreadBackend final : public Backend {
 public:
  ThreadBackend(int rank, std::shared_ptr<Hub> hub)
      : Backend(rank, hub->size), hub_(std::move(hub)), coming_(size()) {}
  ~ThreadBackend() override { leave(); }

  const char* name() const override { return kName; }
  void set_links(const ThinLinks& links) override { links_ = links; }

  void exchange(std::span<const Outgoing> out, std::span<const Incoming> in,
                const Deadline& deadline) override {
    state_.run([&] {
      Lock lock(hub_->mutex);
      begin(out, in);
      try {
        for (;;) {
          while (take_some(lock)) {
          }
          if (all_taken() && all_come()) break;
          wait(lock, deadline);
        }
        for (const Outgoing& message : out) traffic_.bytes_sent += message.bytes.size();
        traffic_.messages_sent += static_cast<std::int64_t>(out.size());
      } catch (...) {
        withdraw(lock);
        throw;
      }
    });
  }

  void abort() noexcept override {
    state_.abort();
    leave();
  }

 private:
  // The messages that are still to come from one rank.
  struct Coming {
    std::vector<std::span<std::byte>> targets;
    std::size_t next = 0;

    bool done() const { return next == targets.size(); }
  };

  void begin(std::span<const Outgoing> out, std::span<const Incoming> in) {
    for (Coming& coming : coming_) {
      coming.targets.clear();
      coming.next = 0;
    }
    for (const Incoming& message : in) coming_[message.from].targets.push_back(message.bytes);
    going_.clear();
    for (const Outgoing& message : out) {
      going_.push_back({message.to, message.bytes, fingerprint()});
      going_.back().passes_link = links_.passed(message.to, message.bytes.size());
    }
    for (Message& message : going_) {
      hub_->box(rank(), message.to).push_back(&message);
      hub_->ranks[message.to].changed.notify_one();
    }
  }

  // Takes the messages that have come. False if there were none: then the lock was never released,
  // and held_ is how long until the next one has passed its link.
  bool take_some(Lock& lock) {
    bool some = false;
    held_ = std::chrono::hours(1);
    for (int from = 0; from < size(); ++from) {
      Coming& coming = coming_[from];
      std::vector<Message*>& box = hub_->box(from, rank());
      for (; !coming.done() && !box.empty(); ++coming.next) {
        if (const auto held = held_for(box.front()->passes_link)) {
          held_ = std::min(held_, *held);
          break;
        }
        take(from, box, coming.targets[coming.next], lock);
        some = true;
      }
    }
    return some;
  }

  void take(int from, std::vector<Message*>& box, std::span<std::byte> target, Lock& lock) {
    Message& message = *box.front();
    box.erase(box.begin());
    std::condition_variable& sender = hub_->ranks[from].changed;
    const std::uint64_t theirs = message.fingerprint;
    if (theirs != fingerprint() || message.bytes.size() != target.size()) {
      message.fingerprint = fingerprint();
      message.expected = target.size();
      message.state = Message::State::refused;
      sender.notify_one();
      compare_fingerprint(from, theirs);
      state_.check_bytes(from, message.bytes.size(), rank(), target.size());
    }
    message.state = Message::State::being_copied;
    lock.unlock();
    if (!target.empty()) std::memcpy(target.data(), message.bytes.data(), target.size());
    lock.lock();
    message.state = Message::State::done;
    sender.notify_one();
    traffic_.bytes_received += target.size();
  }

  bool all_come() const {
    return std::all_of(coming_.begin(), coming_.end(),
                       [](const Coming& coming) { return coming.done(); });
  }

  bool all_taken() {
    bool all = true;
    for (const Message& message : going_) {
      if (message.state == Message::State::refused) {
        compare_fingerprint(message.to, message.fingerprint);
        state_.check_bytes(rank(), message.bytes.size(), message.to, message.expected);
      }
      all = all && message.state == Message::State::done;
    }
    return all;
  }

  // Waits until something has changed; throws when nothing will.
  void wait(Lock& lock, const Deadline& deadline) {
    if (state_.aborted()) state_.throw_aborted();
    const bool late = deadline.passed();
    for (int from = 0; from < size(); ++from) {
      const Coming& coming = coming_[from];
      if (coming.done()) continue;
      if (hub_->ranks[from].gone) state_.throw_closed(from);
      if (late) state_.throw_timeout(from, "sent", "0", coming.targets[coming.next].size());
    }
    for (const Message& message : going_) {
      if (message.state != Message::State::waiting) continue;
      if (hub_->ranks[message.to].gone) state_.throw_closed(message.to);
      if (late) state_.throw_timeout(message.to, "taken", "0", message.bytes.size());
    }
    hub_->ranks[rank()].changed.wait_until(
        lock, std::min(deadline.at(), ThinLinks::Clock::now() + held_));
  }

  // Takes back the messages that nobody has begun to copy, and waits for those that are being
  // copied.
  void withdraw(Lock& lock) {
    for (Message& message : going_) {
      if (message.state == Message::State::waiting) {
        std::erase(hub_->box(rank(), message.to), &message);
      }
      hub_->ranks[rank()].changed.wait(
          lock, [&] { return message.state != Message::State::being_copied; });
    }
  }

  void leave() noexcept {
    std::lock_guard lock(hub_->mutex);
    hub_->ranks[rank()].gone = true;
    for (Hub::Rank& other : hub_->ranks) other.changed.notify_one();
  }

  ExchangeState state_{kName};
  const std::shared_ptr<Hub> hub_;
  std::vector<Coming> coming_;  // by rank
  std::vector<Message> going_;
  ThinLinks links_;
  std::chrono::nanoseconds held_{0};
};

}  // namespace

BackendMaker thread_backend() {
  return [](const std::shared_ptr<Store>& store, int rank, int size, const Deadline& deadline) {
    return std::make_unique<ThreadBackend>(rank, meet(*store, rank, size, deadline));
  };
}

}  // namespace weft::comm
