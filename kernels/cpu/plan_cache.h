// Plans by problem: lookups take no lock and touch no heap, plans live as long as the process.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace weft::cpu {

/// Everything a choice depends on, as plain words.
template <int kWords>
using PlanKey = std::array<std::int64_t, kWords>;

template <class P, int kWords>
class PlanCache {
 public:
  using Key = PlanKey<kWords>;

  PlanCache() { grow(64); }

  /// The plan of `key`; make() -> std::unique_ptr<P> builds it when it is new. One plan is built at
  /// a time, so that the timing of one does not disturb the timing of another.
  template <class Make>
  const P& get(const Key& key, Make&& make) {
    const std::uint64_t hash = hash_of(key);
    if (const Entry* found = find(table_.load(std::memory_order_acquire), key, hash)) {
      return *found->plan;
    }
    std::lock_guard lock(mutex_);
    if (const Entry* found = find(table_.load(std::memory_order_relaxed), key, hash)) {
      return *found->plan;
    }
    auto entry = std::make_unique<Entry>(Entry{key, hash, make()});
    const P& plan = *entry->plan;
    if (2 * (entries_.size() + 1) > tables_.back()->slots.size()) {
      grow(2 * tables_.back()->slots.size());
    }
    entries_.push_back(std::move(entry));
    put(*tables_.back(), entries_.back().get());
    return plan;
  }

 private:
  struct Entry {
    Key key;
    std::uint64_t hash;
    std::unique_ptr<P> plan;
  };
  struct Table {
    explicit Table(std::size_t n) : slots(n) {}
    std::vector<std::atomic<const Entry*>> slots;
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

  static const Entry* find(const Table* table, const Key& key, std::uint64_t hash) {
    const std::size_t mask = table->slots.size() - 1;
    for (std::size_t i = hash & mask;; i = (i + 1) & mask) {
      const Entry* entry = table->slots[i].load(std::memory_order_acquire);
      if (!entry || (entry->hash == hash && entry->key == key)) return entry;
    }
  }

  static void put(Table& table, const Entry* entry) {
    const std::size_t mask = table.slots.size() - 1;
    std::size_t i = entry->hash & mask;
    while (table.slots[i].load(std::memory_order_relaxed)) i = (i + 1) & mask;
    table.slots[i].store(entry, std::memory_order_release);
  }

  // A reader may still be in the old table: it stays, and at worst misses what is new.
  void grow(std::size_t n) {
    auto table = std::make_unique<Table>(n);
    for (const auto& entry : entries_) put(*table, entry.get());
    table_.store(table.get(), std::memory_order_release);
    tables_.push_back(std::move(table));
  }

  std::mutex mutex_;
  std::atomic<const Table*> table_{nullptr};
  std::vector<std::unique_ptr<Table>> tables_;  // the last one is current
  std::vector<std::unique_ptr<Entry>> entries_;
};

}  // namespace weft::cpu
