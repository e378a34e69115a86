// Plans by problem. Finding one takes no lock and touches no heap; new ones are built side by side,
// each once; those not used for long are forgotten.
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

#include "weft/kernels/plan.h"

namespace weft {

/// Everything a choice depends on, as plain words.
template <int kWords>
using PlanKey = std::array<std::int64_t, kWords>;

/// How many plans a cache keeps: several times what a large network needs (ResNet-152 with two
/// batch sizes, in training and evaluation, has some 250 kinds of convolution).
inline constexpr std::size_t kMostPlans = 1024;

/// At most `most` plans, and beside them those that are on loan when room is needed: for a new one
/// the plan goes that was not used for the longest time.
///
/// Entries live as long as the cache, so that a reader may look at one at any time. An entry's key
/// and plan are read only on loan, and changed only while the entry is taken: its count of loans,
/// found at 0, is then far below 0, and borrowing fails. A reader that is sent astray by an entry
/// that moves finds nothing, and get() looks again under the lock.
template <class P, int kWords>
class PlanCache {
 public:
  using Key = PlanKey<kWords>;

  explicit PlanCache(std::size_t most = kMostPlans) : most_(most), buckets_(std::bit_ceil(most)) {}

  /// The plan of `key`; make() -> std::unique_ptr<P> builds it when it is new, with no lock held.
  /// Who asks for a plan that another thread is building waits for it, and for no other one. What
  /// make() throws, its caller gets, and the next one who waits tries again.
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
  // Entries that move could send a reader on for ever.
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
    // Two independent chains of multiply and shift: one multiply's latency per two words.
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
        // Stored only when it changes: readers on other cores keep their copies.
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
    std::unique_ptr<const P> plan, forgotten;  // the latter ends without the lock
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

  /// A taken entry in no bucket, and the plan it had.
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
  std::atomic<std::uint64_t> clock_{0};       // counts plans that were built

  // The rest, and changes of the chains, are guarded by mutex_.
  mutable std::mutex mutex_;
  std::condition_variable built_;
  std::vector<const Key*> building_;
  std::vector<std::unique_ptr<Entry>> entries_;
};

}  // namespace weft
