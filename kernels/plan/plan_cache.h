// A cache of plans, by problem. Finding a plan takes no lock and allocates nothing. Threads may
// build new plans at the same time, each plan only once. The least recently used plans are dropped.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <vector>

#include "weft/kernels/plan/plan.h"

namespace weft {

/// Everything that the choice of a plan depends on, as integers.
template <int kWords>
using PlanKey = std::array<std::int64_t, kWords>;

/// How many plans a cache keeps: several times as many as a large network needs (ResNet-152 with
/// two batch sizes, in training and evaluation, has about 250 different convolutions).
inline constexpr std::size_t kMostPlans = 1024;

/// Keeps at most `most` plans. A new plan replaces the one that has not been used for the longest
/// time. If all plans are on loan, the cache grows instead.
///
/// Entries live as long as the cache, so a reader may look at one at any time. A reader borrows the
/// entry before it reads key and plan. A writer takes the entry before it changes them: it sets the
/// count of loans from 0 to a value far below 0, so that borrowing fails. If a reader follows an
/// entry that moves to another bucket, it may miss its plan; get() then looks again under the lock.
template <class P, int kWords>
class PlanCache {
 public:
  using Key = PlanKey<kWords>;

  explicit PlanCache(std::size_t most = kMostPlans) : most_(most), buckets_(std::bit_ceil(most)) {}

  /// Returns the plan of `key`. If there is none, make() -> std::unique_ptr<P> builds it, with no
  /// lock held. A thread that asks for a plan that another thread is building waits for this plan
  /// only. If make() throws, its caller gets the error, and a waiting thread builds the plan.
  template <class Make>
  PlanRef<P> get(const Key& key, Make&& make) {
    const std::uint64_t hash = hash_of(key);
    if (PlanRef<P> found = find(key, hash, kShortWalk)) return found;
    return build(key, hash, make);
  }

  /// How many plans are kept.
  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return entries_.size();
  }

 private:
  static constexpr int kTaken = std::numeric_limits<int>::min() / 2;
  // Without a limit, entries that move could keep a reader walking for ever.
  static constexpr int kShortWalk = 64;

  struct Entry {
    std::atomic<int> loans{kTaken};
    std::atomic<std::uint64_t> hash{0};
    std::atomic<std::uint64_t> used{0};  // clock_ when it was last lent
    std::atomic<Entry*> next{nullptr};   // in its bucket
    Key key{};
    std::unique_ptr<const P> plan;
  };

  static std::uint64_t hash_of(const Key& key) {
    // Two independent chains of multiply and shift: the latency of one multiply per two words.
    std::uint64_t a = 0x9e3779b97f4a7c15u, b = 0xc2b2ae3d27d4eb4fu;
    for (int i = 0; i + 1 < kWords; i += 2) {
      a = (a ^ std::uint64_t(key[i])) * 0xff51afd7ed558ccdu;
      b = (b ^ std::uint64_t(key[i + 1])) * 0xc4ceb9fe1a85ec53u;
      a ^= a >> 32;
      b ^= b >> 32;
    }
    if constexpr (kWords % 2 != 0) a = (a ^ std::uint64_t(key[kWords - 1])) * 0xff51afd7ed558ccdu;
    const std::uint64_t h = (a ^ (b << 1)) * 0x9e3779b97f4a7c15u;
    return h ^ (h >> 29);
  }

  std::atomic<Entry*>& bucket(std::uint64_t hash) { return buckets_[hash & (buckets_.size() - 1)]; }

  PlanRef<P> find(const Key& key, std::uint64_t hash, int steps) {
    Entry* entry = bucket(hash).load(std::memory_order_acquire);
    for (; entry && steps > 0; --steps, entry = entry->next.load(std::memory_order_acquire)) {
      if (entry->hash.load(std::memory_order_relaxed) != hash) continue;
      const bool lent = entry->loans.fetch_add(1, std::memory_order_acquire) >= 0;
      if (lent && entry->key == key) {
        // Stored only if it changes: so the cache line stays shared between cores.
        const std::uint64_t now = clock_.load(std::memory_order_relaxed);
        if (entry->used.load(std::memory_order_relaxed) != now) {
          entry->used.store(now, std::memory_order_relaxed);
        }
        return PlanRef<P>(entry->plan.get(), &entry->loans);
      }
      entry->loans.fetch_sub(1, std::memory_order_release);
    }
    return {};
  }

  template <class Make>
  [[gnu::noinline]] PlanRef<P> build(const Key& key, std::uint64_t hash, Make& make) {
    std::unique_ptr<const P> plan, forgotten;  // `forgotten` is destroyed after the unlock
    std::unique_lock lock(mutex_);
    const auto is_key = [&](const Key* other) { return *other == key; };
    for (;;) {
      if (PlanRef<P> found = find(key, hash, std::numeric_limits<int>::max())) return found;
      if (std::none_of(building_.begin(), building_.end(), is_key)) break;
      built_.wait(lock);
    }
    building_.push_back(&key);
    try {
      lock.unlock();
      plan = make();
      lock.lock();
      Entry& entry = vacant_entry(forgotten);
      entry.key = key;
      entry.plan = std::move(plan);
      entry.hash.store(hash, std::memory_order_relaxed);
      entry.used.store(clock_.fetch_add(1, std::memory_order_relaxed) + 1,
                       std::memory_order_relaxed);
      entry.next.store(bucket(hash).load(std::memory_order_relaxed), std::memory_order_relaxed);
      bucket(hash).store(&entry, std::memory_order_release);
      entry.loans.fetch_add(1 - kTaken, std::memory_order_release);
      end_building(key);
      return PlanRef<P>(entry.plan.get(), &entry.loans);
    } catch (...) {
      if (!lock.owns_lock()) lock.lock();
      end_building(key);
      throw;
    }
  }

  void end_building(const Key& key) {
    building_.erase(std::find(building_.begin(), building_.end(), &key));
    built_.notify_all();
  }

  /// Returns a taken entry that is in no bucket, and moves its old plan to `forgotten`.
  Entry& vacant_entry(std::unique_ptr<const P>& forgotten) {
    while (entries_.size() >= most_) {
      Entry* oldest = nullptr;
      for (const auto& entry : entries_) {
        if (entry->loans.load(std::memory_order_relaxed) != 0) continue;
        if (!oldest || entry->used.load(std::memory_order_relaxed) <
                           oldest->used.load(std::memory_order_relaxed)) {
          oldest = entry.get();
        }
      }
      if (!oldest) break;  // all are on loan
      int none = 0;
      if (!oldest->loans.compare_exchange_strong(none, kTaken, std::memory_order_acquire)) continue;
      std::atomic<Entry*>* link = &bucket(oldest->hash.load(std::memory_order_relaxed));
      while (link->load(std::memory_order_relaxed) != oldest) {
        link = &link->load(std::memory_order_relaxed)->next;
      }
      link->store(oldest->next.load(std::memory_order_relaxed), std::memory_order_release);
      forgotten = std::move(oldest->plan);
      return *oldest;
    }
    entries_.push_back(std::make_unique<Entry>());
    return *entries_.back();
  }

  const std::size_t most_;
  std::vector<std::atomic<Entry*>> buckets_;  // chains of entries
  std::atomic<std::uint64_t> clock_{0};       // number of plans built so far

  // mutex_ guards the members below and all changes of the chains.
  mutable std::mutex mutex_;
  std::condition_variable built_;
  std::vector<const Key*> building_;
  std::vector<std::unique_ptr<Entry>> entries_;
};

}  // namespace weft
